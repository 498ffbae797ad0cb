"""`dsh export --format` and `--with-secrets` as people use them; the page as a browser sees it, where there is one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, Run
from tests.core.test_secrets import chance
from tests.history import History, call, text
from tests.session.page import read_page

pytestmark = pytest.mark.slow  # each test starts the program, some many times

KEY = "ghp_" + chance(36)
MARK = "[redacted:github]"


@pytest.fixture
def talk(history: History) -> History:
    history.session("talk", cwd="/w")
    history.turn(
        "talk", 1, "look at <this>", text("**well**"), call("c", "bash", '{"command":"ls"}'), results={"c": "out\n"}
    )
    return history


@pytest.fixture
def held(history: History) -> History:
    """A session with a key in a prompt, in streamed pieces and in a result."""
    history.session("held", cwd="/w")
    user = {"kind": "user"}
    history.event("held", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": user}})
    history.event("held", "user/message", {"content": [text(f"use {KEY}")], "source": user}, "append")
    at = {"turn": 1, "step": 1}
    history.event("held", "step/start", at)
    for piece in ("I use ", KEY[:6], KEY[6:], " then"):
        chunk = {"type": "text-delta", "index": 0, "text": piece}
        history.event("held", "assistant/chunk", {**at, "chunk": chunk})
    history.event("held", "step/end", at)
    history.event("held", "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    return history


@pytest.mark.slow
@pytest.mark.parametrize("form", ["markdown", "html", "json"])
def test_a_document_goes_where_an_export_goes(dsh: Run, talk: History, tmp_path: Path, form: str) -> None:
    plain = dsh("export", "ta", "--format", form)
    assert (plain.returncode, plain.stderr) == (0, "")
    file = tmp_path / "out"
    assert dsh("export", "talk", "--format", form, "-o", str(file)).stdout == ""
    assert file.read_text() == plain.stdout
    again = dsh("export", "talk", "--format", form, "-o", str(file))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    talk.say("a/b", "hi")
    suffix = {"markdown": "md", "html": "html", "json": "json"}[form]
    root = tmp_path / "root"
    done = dsh("export", "--all", "--format", form, "--to", str(root))
    files = [root / "--w--" / "talk" / f"session.{suffix}", root / "_no-cwd" / "a~002Fb" / f"session.{suffix}"]
    assert (done.returncode, done.stdout) == (0, f"talk\t{files[0]}\na/b\t{files[1]}\n")
    assert files[0].read_text() == plain.stdout
    taken = dsh("export", "talk", "--format", form, "--to", str(root))
    assert (taken.returncode, "exists already" in taken.stderr) == (2, True)
    beside = dsh("export", "--all", "--to", str(root))  # a folder may have the logs, too
    assert beside.returncode == 0
    assert dsh("--db", str(tmp_path / "other.db"), "import", str(root)).stdout == "talk\na/b\n"


def test_each_document_is_what_it_is_called(dsh: Run, talk: History) -> None:
    page = read_page(dsh("export", "talk", "--format", "html").stdout)
    assert "look at <this>" in page.all("article", "prompt")[0].text
    assert json.loads(dsh("export", "talk", "--format", "json").stdout)["messages"][0]["content"] == [
        text("look at <this>")
    ]
    assert "look at &lt;this>" in dsh("export", "talk", "--format", "markdown").stdout
    assert dsh("export", "talk", "--format", "jsonl").stdout == dsh("export", "talk").stdout


@pytest.mark.parametrize("options", [(), ("--raw",), ("--zstd",)])
def test_keys_stay_behind_unless_they_are_asked_for(
    dsh: Run, held: History, tmp_path: Path, options: tuple[str, ...]
) -> None:
    file, whole = str(tmp_path / "f"), str(tmp_path / "whole")
    done = dsh("export", "held", "-o", file, *options)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "dsh: masked: 2 places (github 2); --with-secrets keeps them\n"
    assert dsh("export", "held", "-o", whole, "--with-secrets", *options).stderr == ""
    assert dsh("import", file, "--as", "masked").returncode == 0
    assert dsh("import", whole, "--as", "copy").returncode == 0
    columns = "seq, type, time, data, source_event_seqs, surface_op"
    rows = {
        id_: held.db.rows(f"SELECT {columns} FROM event WHERE session_id = ? ORDER BY seq", (id_,))
        for id_ in ("held", "masked", "copy")
    }
    assert rows["copy"] == rows["held"]
    assert [row[:3] for row in rows["masked"]] == [row[:3] for row in rows["held"]]
    texts = [json.loads(row[3])["chunk"]["text"] for row in rows["masked"] if row[1] == "assistant/chunk"]
    assert texts == ["I use ", MARK, "", " then"]
    assert not any(KEY[6:] in row[3] for row in rows["masked"])


@pytest.mark.parametrize("form", ["markdown", "html", "json"])
def test_documents_keep_no_keys_either(dsh: Run, held: History, form: str) -> None:
    done = dsh("export", "held", "--format", form)
    assert KEY not in done.stdout
    assert MARK in done.stdout
    assert done.stderr.startswith("dsh: masked: ")
    kept = dsh("export", "held", "--format", form, "--with-secrets")
    assert KEY in kept.stdout
    assert kept.stderr == ""


def test_what_show_prints_is_the_log_itself(dsh: Run, held: History) -> None:
    for options in ((), ("--json",), ("--messages",), ("--markdown",)):
        assert KEY in dsh("show", "held", *options).stdout


def test_no_search_shows_or_finds_a_key(dsh: Run, held: History) -> None:
    for words in (["use"], ["use", "--json"], ["in:title", "use"], ["--session", "held", "use"]):
        done = dsh("search", *words)
        assert (done.returncode, KEY[4:] in done.stdout, MARK in done.stdout) == (0, False, True)
    assert dsh("search", KEY).returncode == 1


WRONG = [
    (("--format", "html", "--zstd"), "--zstd is for"),
    (("--format", "json", "--raw"), "--raw is for"),
    (("--format", "pdf"), "pdf"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_wrong_usage(dsh: Run, talk: History, options: tuple[str, ...], said: str) -> None:
    done = dsh("export", "talk", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_terminal_is_not_driven_by_a_document(terminal: Any, history: History) -> None:
    history.say("s", "bell \x07 and \x1b[31m", "\x9b31m")
    for form in ("markdown", "html", "json"):
        code, shown = terminal("export", "s", "--format", form)
        assert code == 0
        assert not {"\x07", "\x1b", "\x9b"} & set(shown)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["markdown", "html", "json"])
def test_memory_does_not_grow_with_a_session(history: History, tmp_path: Path, form: str) -> None:
    program = (
        "import sys, resource; from dsh.cli.main import main; main(sys.argv[1:]);"
        " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )

    def peak_kib(session: str, turns: int) -> int:
        history.session(session)
        with history.db.transaction():
            for turn in range(1, turns + 1):
                history.turn(
                    session,
                    turn,
                    f"ask {turn}",
                    text("answer " * 1000),
                    call("c", "x", "{}"),
                    results={"c": "out " * 5000},
                )
        command = [sys.executable, "-c", program, "export", session, "--format", form, "-o", str(tmp_path / session)]
        done = subprocess.run(
            command, capture_output=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
        )
        return int(done.stdout)

    small = peak_kib("small", 20)
    assert peak_kib("large", 600) < small + 8_000
    assert (tmp_path / "large").stat().st_size > 15_000_000


# ---------------------------------------------------------------------------------------------------------- a browser


@pytest.fixture
def browser(tmp_path: Path) -> Any:
    """Loads a page without a network and returns what it then consists of, or where its picture is."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed")

    def load(page: Path, *options: str) -> str:
        command = [found, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0", *options]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, timeout=120, check=True)
        log = done.stderr.decode("utf-8", "replace")
        assert "Content Security Policy" not in log, log
        assert "CONSOLE" not in log, log
        return done.stdout.decode()

    return load


@pytest.mark.slow
def test_a_browser_shows_the_page(dsh: Run, talk: History, tmp_path: Path, browser: Any) -> None:
    taken = "document.title='taken'"
    hostile = f'<script>{taken}</script><img src=x onerror="{taken}"><style>*{{color:red}}</style>'
    talk.turn(
        "talk",
        2,
        hostile,
        text(hostile + "\n\n`</code>" + hostile),
        call("c", hostile, hostile),
        results={"c": hostile},
    )
    page = tmp_path / "page.html"
    assert dsh("export", "talk", "--format", "html", "-o", str(page)).returncode == 0
    dom = browser(page, "--dump-dom")
    assert "<title>look at &lt;this&gt;</title>" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    assert dom.count("<style") == 1
    assert dom.count("<details") == 4
    pictures = []
    for name, options in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        picture = tmp_path / f"{name}.png"
        browser(page, "--hide-scrollbars", "--window-size=1200,900", f"--screenshot={picture}", *options)
        pictures.append(picture.read_bytes())
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]  # the style sheet is in force
    printed = tmp_path / "page.pdf"
    browser(page, f"--print-to-pdf={printed}")
    assert printed.read_bytes().startswith(b"%PDF")
