"""`dsh redact`: the text is gone from log, index and file, and nothing else has changed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from dsh.core.lossless import loads
from dsh.session.redaction import masker
from dsh.store import rewriting, writes
from tests.cli.conftest import DSH, ROOT, Run
from tests.core.test_secrets import chance
from tests.history import History, call, text

pytestmark = pytest.mark.slow  # each test starts programs, some many times

KEY = "ghp_" + chance(36)
WORD = "Zwetschgenwasser"
USER = {"kind": "user"}


def chunk(history: History, session: str, turn: int, words: str, kind: str = "text-delta") -> None:
    piece = {"type": kind, "index": 0, "text": words}
    history.event(session, "assistant/chunk", {"turn": turn, "step": 1, "chunk": piece})


@pytest.fixture
def told(history: History) -> History:
    """A word and a key in every place that a log has: prompt, pieces, answer, call, result; and a fork."""
    history.session("s", cwd="/w")
    history.event("s", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": USER}})
    history.event("s", "user/message", {"content": [text(f"I like {WORD}, {KEY}")], "source": USER}, "append")
    at = {"turn": 1, "step": 1}
    history.event("s", "step/start", at)
    history.event("s", "request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"})
    for piece in ("so ", WORD[:7], WORD[7:10], WORD[10:] + " and " + KEY[:9], KEY[9:], "."):
        chunk(history, "s", 1, piece)
    arguments = json.dumps({"command": f'echo "{WORD}"\n# {KEY}'})
    content = [text(f"so {WORD} and {KEY}."), call("c1", "bash", arguments)]
    message = {**at, "content": content, "provenance": {"provider": "p", "model": "m"}}
    history.event("s", "assistant/message", message, "append")
    history.event("s", "tool/call", {**at, "callId": "c1", "name": "bash", "arguments": arguments})
    result = {**at, "callId": "c1", "content": [text(f"{WORD}\n" + "x " * 150 + KEY)], "isError": False}
    history.event("s", "tool/result", result, "append")
    history.event("s", "step/end", at)
    history.event("s", "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    history.fork("f", "s")
    history.turn("f", 2, f"still {WORD}?", text("no"))
    history.say("other", "nothing to see", "plums")
    writes.refresh_search(history.db)
    return history


def bytes_of(history: History) -> bytes:
    history.db.close()
    return b"".join(file.read_bytes() for file in sorted(history.path.parent.glob("dsh.db*")))


def log(history: History) -> list[Any]:
    return history.db.rows("SELECT session_id, seq, type, time, data FROM event ORDER BY session_id, seq")


@pytest.mark.parametrize("packed", [False, True])
def test_a_word_is_gone_from_every_byte(dsh: Run, told: History, packed: bool) -> None:
    if packed:
        rewriting.pack_session(told.db, "s")
    before = log(told)
    done = dsh("redact", WORD, "-y")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "dsh: redacted 7 places in 8 events\n"
    assert dsh("search", WORD).returncode == 1
    assert dsh("search", "Zwetschg*").returncode == 1
    assert dsh("search", "redacted", "--session", "s").returncode == 0
    after = log(told)
    assert [row[:4] for row in after] == [row[:4] for row in before]
    for old, new in zip(before, after, strict=True):
        if WORD in old[4]:
            assert loads(new[4]) == loads(old[4].replace(WORD, "[redacted]"))
    pieces = [loads(row[4])["chunk"]["text"] for row in after if row[0] == "s" and row[2] == "assistant/chunk"]
    assert pieces == ["so ", "[redacted]", "", " and " + KEY[:9], KEY[9:], "."]
    assert dsh("db", "check").returncode == 0
    found = bytes_of(told)
    for gone in (WORD, WORD[:7], WORD[10:], WORD.lower()):
        assert gone.encode() not in found
    assert KEY.encode() in found


def test_keys_are_found_by_their_shape(dsh: Run, told: History) -> None:
    done = dsh("redact", "--secrets", "--yes")
    assert (done.returncode, done.stderr) == (0, "dsh: redacted 6 places (github 6) in 6 events\n")
    assert "[redacted:github]" in dsh("show", "f", "--full").stdout
    assert dsh("redact", "--secrets", "--yes").stderr == "dsh: nothing found\n"
    found = bytes_of(told)
    assert KEY[9:].encode() not in found
    assert WORD.encode() in found


def test_a_dry_run_lists_and_changes_nothing(dsh: Run, told: History) -> None:
    before = log(told)
    done = dsh("redact", "--dry-run", WORD)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(at, kind) for at, kind, _ in lines] == [
        ("f:16", "user/message"),
        ("s:1", "user/message"),
        ("s:5", "assistant/chunk"),
        ("s:10", "assistant/message"),
        ("s:11", "tool/call"),
        ("s:12", "tool/result"),
    ]
    assert all("[redacted]" in snippet for _, _, snippet in lines)
    assert WORD not in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert KEY not in dsh("redact", "-n", "--secrets").stdout
    none = dsh("redact", "-n", "Kirschwasser")
    assert (none.returncode, none.stdout, none.stderr) == (1, "", "dsh: nothing found\n")
    assert log(told) == before


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--session", "other"), {"s", "f"}),
        (("--session", "s"), {"f"}),
        (("--session", "f"), set()),  # with what it shares
        (("--regex", "Z[a-z]+wasser"), set()),
        (("--regex", "(?i)zwetschgenWASSER"), set()),
        (("--regex", "x*", "--session", "other"), {"s", "f"}),  # what matches nothing is nothing
    ],
)
def test_filters(dsh: Run, told: History, options: tuple[str, ...], left: set[str]) -> None:
    pattern = [] if "--regex" in options else [WORD]
    done = dsh("redact", "-y", *options, *pattern)
    assert done.returncode == (0 if "other" not in options else 1)
    assert {row[0] for row in log(told) if WORD in row[4] and (row[0] == "s" or row[1] > 14)} == left


def test_since_leaves_older_events_alone(dsh: Run, history: History) -> None:
    now = int(time.time() * 1000)
    history.say("old", WORD, time=now - 10 * 86_400_000)
    history.say("new", WORD, time=now - 86_400_000)
    assert dsh("redact", "-y", WORD, "--since", "3d").returncode == 0
    assert {row[0] for row in log(history) if WORD in row[4]} == {"old"}


def test_words_that_json_writes_otherwise(dsh: Run, history: History) -> None:
    words = 'say "é\n<b>" \\o/'
    history.session("s")
    arguments = json.dumps({"a": words})
    plain = json.dumps({"a": words}, ensure_ascii=False)
    calls = [call("c1", "x", arguments), call("c2", "x", plain)]
    history.turn("s", 1, f"please {words}!", *calls, results={"c1": words, "c2": "é"})
    assert dsh("redact", "-y", words).returncode == 0
    rows = log(history)
    assert not any("<b>" in row[4] for row in rows)
    assert [loads(loads(row[4])["arguments"]) for row in rows if row[2] == "tool/call"] == [{"a": "[redacted]"}] * 2


def test_a_session_at_work_stays_as_it_is(dsh: Run, told: History) -> None:
    writes.claim_lease(told.db, "f", "token")
    done = dsh("redact", "-y", WORD)
    assert done.returncode == 8
    assert done.stderr.splitlines()[0].startswith("dsh: session f stays as it is: ")
    assert {row[0] for row in log(told) if WORD in row[4]} == {"f"}


def test_the_lease_of_a_process_that_is_gone_is_in_nobodys_way(dsh: Run, told: History) -> None:
    with subprocess.Popen(["true"]) as process:
        gone = process.pid
    told.db.rows(
        "INSERT INTO lease(session_id, holder, pid, boot_id, process_start, heartbeat)"
        " VALUES ('f', 't', ?, 'x', '1', 1)",
        (gone,),
    )
    assert dsh("redact", "-y", WORD).returncode == 0
    assert not any(WORD in row[4] for row in log(told))


def test_what_it_cannot_change_is_told(dsh: Run, history: History) -> None:
    history.session("s")
    history.turn("s", 1, WORD, call(WORD, "x", "{}"), results={WORD: "out"})
    writes.put_message(history.db, "s", "m1", "queue", [text(f"again {WORD}")], USER)
    done = dsh("redact", "-y", WORD)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "dsh: 3 places stay: names of fields, or what events refer to each other by",
        "dsh: a message that waits holds it, too: dsh cancel s drops it",
        "dsh: redacted 1 place in 1 event",
    ]


WRONG: list[tuple[tuple[str, ...], str]] = [
    ((), "name a PATTERN"),
    (("x", "--secrets"), "--secrets goes without"),
    (("--secrets", "--regex"), "--regex is for"),
    (("", "-y"), "empty"),
    (("(", "--regex", "-y"), "no regular expression"),
    (("x", "--session", "nowhere"), "there is no session"),
    (("plums",), "--yes"),
    (("x", "--since", "whenever"), "point in time"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_wrong_usage_is_told_in_a_line(dsh: Run, told: History, arguments: tuple[str, ...], said: str) -> None:
    done = dsh("redact", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") <= 2


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_a_person_is_asked(told: History, answer: bytes, code: int) -> None:
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 200))
    process = subprocess.Popen(
        [*DSH, "redact", WORD], stdin=side, stdout=side, stderr=side, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    os.close(side)
    os.write(main, answer)
    assert process.wait(timeout=60) == code
    shown = os.read(main, 65536).decode()
    os.close(main)
    assert "redact 7 places in 8 events of 2 sessions for good?" in shown
    assert any(WORD in row[4] for row in log(told)) == (code == 1)


def test_no_history_has_nothing_to_redact(dsh: Run, tmp_path: Path) -> None:
    assert dsh("redact", "x", "-y", "--session", "s").returncode == 2
    done = dsh("redact", "x", "-y")
    assert done.returncode == 1
    assert not (tmp_path / "dsh.db").exists()


def test_text_that_sessions_have_in_common_goes_from_all_of_them(dsh: Run, history: History) -> None:
    system = "You are a careful assistant. " * 200 + WORD + " is the word of the day. " * 50
    header = {"config": {"provider": "p", "model": "m"}, "system": system}
    for session in ("one", "two", "three"):
        history.session(session)
        history.turn(session, 1, "hi", text("yes"))
        history.event(session, "turn/start", {"turn": 2, "trigger": {"kind": "message", "source": USER}})
        history.event(session, "request/header", {"header": header, "reason": "change"})
        history.event(session, "turn/end", {"turn": 2, "reason": {"kind": "completed"}})
    done = dsh("redact", "-y", WORD, "--session", "one", "--session", "two")
    assert (done.returncode, done.stderr) == (0, "dsh: redacted 2 places in 2 events\n")
    assert {row[0] for row in log(history) if WORD in row[4]} == {"three"}
    assert dsh("redact", "-y", WORD).returncode == 0
    assert dsh("db", "check").returncode == 0
    assert WORD.encode() not in bytes_of(history)


@pytest.mark.slow
def test_a_reader_keeps_the_old_pages_until_it_is_gone(dsh: Run, told: History) -> None:
    with told.db.snapshot():
        told.db.rows("SELECT count(*) FROM event")
        done = dsh("redact", "-y", WORD)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        0,
        ["dsh: somebody is reading: the file forgets it when nobody is"],
    )
    assert WORD.encode() not in bytes_of(told)


@pytest.mark.parametrize(
    ("pattern", "regex", "before", "after"),
    [
        ("github", False, "a [redacted:github] github", "a [redacted:github] [redacted]"),
        ("e", False, "e [redacted] be", "[redacted] [redacted] b[redacted]"),
        ("redacted", False, "[redacted] and [redacted:aws-access-key]", None),
        (r"\[redacted.*?\]", True, "[redacted] [redacted:github]", None),
        ("key.*", True, "the key: [redacted:github] and more", "the [redacted]"),
        ("acted] o", False, "a [redacted] or b", "a [redacted]r b"),
        (r"x.*?red|hub.*", True, "x [redacted:github] y", "[redacted]"),
        ("a|", True, "banana", "b[redacted]n[redacted]n[redacted]"),
    ],
)
def test_a_mark_is_no_text_of_anybodys(pattern: str, regex: bool, before: str, after: str | None) -> None:
    mask = masker(pattern, regex=regex)
    once = mask.text(before)
    assert once == (before if after is None else after)
    assert (mask.counts.total() > 0) == (after is not None)
    assert masker(pattern, regex=regex).text(once) == once
