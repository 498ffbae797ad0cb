"""`dsh export` and `dsh import` as a person uses them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsh.store import writes
from tests.cli.conftest import DSH, ROOT, Run
from tests.history import History, call, text

pytestmark = pytest.mark.slow  # each test starts the program, some many times

ROWS = "SELECT seq, type, time, data, source_event_seqs, surface_op FROM event WHERE session_id = ? ORDER BY seq"


def log(history: History, session: str) -> list[Any]:
    return history.db.rows(ROWS, (session,))


def header(history: History, session: str) -> tuple[Any, ...]:
    columns = "version, created_at, cwd, parent_session, seed_length, delegation_depth, turns, open_turn"
    [found] = history.db.rows(f"SELECT {columns} FROM session WHERE id = ?", (session,))
    return found


def refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """One line on standard error, and perhaps a hint."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 2
    assert all(line.startswith("dsh: ") for line in done.stderr.splitlines())
    assert all(part in done.stderr for part in parts), done.stderr


@pytest.fixture
def talk(history: History) -> History:
    """A session with streamed text, calls and a second turn."""
    history.session("talk", cwd="/w", depth=1)
    history.turn("talk", 1, "look", text("well"), call("c", "bash", "{}"), results={"c": "out\n"})
    history.event("talk", "turn/start", {"turn": 2, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    history.event("talk", "step/start", {"turn": 2, "step": 1})
    for piece in ("a", "é", "\u2028", ""):
        chunk = {"type": "text-delta", "index": 0, "text": piece}
        history.event("talk", "assistant/chunk", {"turn": 2, "step": 1, "chunk": chunk})
    history.event("talk", "step/end", {"turn": 2, "step": 1})
    history.event("talk", "turn/end", {"turn": 2, "reason": {"kind": "completed"}})
    return history


@pytest.mark.rule("PE-60", "PE-61")
@pytest.mark.parametrize("options", [(), ("--raw",), ("--zstd",), ("--raw", "--zstd")])
def test_a_session_comes_back_as_it_was(dsh: Run, talk: History, tmp_path: Path, options: tuple[str, ...]) -> None:
    file = str(tmp_path / "out")
    done = dsh("export", "ta", "-o", file, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = dsh("import", file, "--as", "copy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "copy\n", "")
    assert log(talk, "copy") == log(talk, "talk")
    assert header(talk, "copy") == header(talk, "talk")
    other = dsh("--db", str(tmp_path / "other.db"), "import", file)
    assert other.stdout == "talk\n"
    again = dsh("--db", str(tmp_path / "other.db"), "export", "talk", *options, "-o", f"{file}2")
    assert again.returncode == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "out2").read_bytes()


def test_standard_output_and_standard_input(dsh: Run, talk: History) -> None:
    plain = dsh("export", "talk").stdout
    lines = [json.loads(line) for line in plain.split("\n")[:-1]]
    assert lines[0]["type"] == "session"
    assert "text-chunks" in [line["type"] for line in lines]
    assert "text-chunks" not in dsh("export", "talk", "--raw").stdout
    assert dsh("export", "talk", "-o", "-").stdout == plain
    done = dsh("import", "-", "--as", "copy", stdin=None, input=plain)
    assert (done.returncode, done.stdout, done.stderr) == (0, "copy\n", "")
    assert log(talk, "copy") == log(talk, "talk")
    packed = subprocess.run([*DSH, "export", "talk", "--zstd"], capture_output=True, check=True, cwd=ROOT).stdout
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed).startswith(b'{"type":"session"')
    taken = subprocess.run([*DSH, "import", "-", "--as", "c2"], input=packed, capture_output=True, check=True, cwd=ROOT)
    assert (taken.stdout, taken.stderr) == (b"c2\n", b"")
    assert log(talk, "c2") == log(talk, "talk")


@pytest.mark.rule("PE-64", "PE-65")
@pytest.mark.parametrize("zstd", [(), ("--zstd",)])
def test_several_sessions_go_to_a_folder_and_come_back(
    dsh: Run, talk: History, tmp_path: Path, zstd: tuple[str, ...]
) -> None:
    talk.say("a/b", "hi")
    root = tmp_path / "root"
    done = dsh("export", "--all", "--to", str(root), *zstd)
    assert (done.returncode, done.stderr) == (0, "")
    end = ".zstd" if zstd else ""
    files = [root / "--w--" / "talk" / f"session.jsonl{end}", root / "_no-cwd" / "a~002Fb" / f"session.jsonl{end}"]
    assert done.stdout == f"talk\t{files[0]}\na/b\t{files[1]}\n"
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    refused(dsh("export", "--all", "--to", str(root), *zstd), 2, "exists already")
    talk.say("new", "hi")
    kind = () if zstd else ("--zstd",)
    refused(dsh("export", "new", "--to", str(root), *kind), 2, "one folder holds one kind")
    done = dsh("--db", str(tmp_path / "other.db"), "import", str(root))
    assert (done.returncode, done.stdout, done.stderr) == (0, "talk\na/b\n", "")
    files[0].parent.rename(files[0].parent.with_name("else"))
    refused(dsh("--db", str(tmp_path / "third.db"), "import", str(root)), 8, "does not belong there")
    assert not (tmp_path / "third.db").exists()


def test_a_fork_is_whole_and_shares_again_where_it_can(dsh: Run, talk: History, tmp_path: Path) -> None:
    talk.session("base", cwd="/w")
    talk.turn("base", 1, "look", text("well"), call("c", "bash", "{}"), results={"c": "out"})
    talk.fork("child", "base")
    talk.turn("child", 2, "go on", text("yes"))
    before = log(talk, "child")
    root = str(tmp_path / "root")
    assert dsh("export", "child", "base", "--to", root).returncode == 0
    [file] = (tmp_path / "root").glob("*/child/*")
    first = json.loads(file.read_text().split("\n")[0])
    assert (first["parentSession"], first["seedLength"]) == ("base", 10)
    other = History(tmp_path / "other.db")
    try:
        assert dsh("--db", str(other.path), "import", root).stdout == "base\nchild\n"
        assert log(other, "child") == before
        assert header(other, "child") == header(talk, "child")
        shared = "SELECT count(*) FROM lineage WHERE session_id = 'child' AND owner_id = 'base'"
        assert other.db.rows(shared) == [(1,)]
        assert dsh("--db", str(other.path), "import", str(file), "--as", "third").stdout == "third\n"
        assert log(other, "third") == before
    finally:
        other.db.close()
    alone = History(tmp_path / "alone.db")  # without the parent, or with another one of its name: its own events
    try:
        assert dsh("--db", str(alone.path), "import", str(file)).stdout == "child\n"
        alone.session("base", cwd="/w")
        for row in before[:6]:
            writes.insert_event(alone.db, "base", *row)
        end = json.dumps({"turn": 1, "step": 1}, separators=(",", ":"))
        writes.insert_event(alone.db, "base", 6, "step/end", 1, end, None, None)
        for seq in range(7, 12):
            writes.insert_event(alone.db, "base", seq, "x", 1, "1", None, None)
        assert dsh("--db", str(alone.path), "import", str(file), "--as", "second").stdout == "second\n"
        assert log(alone, "child") == log(alone, "second") == before
        assert header(alone, "second") == header(talk, "child")
        assert alone.db.rows("SELECT count(*) FROM lineage WHERE owner_id = 'base'") == [(1,)]
    finally:
        alone.db.close()


def test_an_import_of_several_goes_on_and_takes_parents_first(dsh: Run, talk: History, tmp_path: Path) -> None:
    talk.fork("child", "talk")
    root, db = tmp_path / "root", ("--db", str(tmp_path / "other.db"))
    assert dsh("export", "--all", "--to", str(root)).returncode == 0
    [file] = root.glob("*/child/*")
    header, rest = file.read_text().split("\n", 1)  # its clock was set back before it was made
    file.write_text(json.dumps({**json.loads(header), "createdAt": 1}) + "\n" + rest)
    [parent] = root.glob("*/talk/*")
    assert dsh(*db, "import", str(parent)).stdout == "talk\n"
    done = dsh(*db, "import", str(root))
    assert (done.returncode, done.stdout) == (2, "child\n")
    first, last = done.stderr.splitlines()
    assert first.endswith("session talk exists already")
    assert last == "dsh: 1 of 2 sessions stay as they are"
    assert dsh("--db", str(tmp_path / "third.db"), "import", str(root)).stdout == "talk\nchild\n"
    other = History(tmp_path / "other.db")
    try:
        assert other.db.rows("SELECT id, parent_session FROM fork") == [("child", "talk")]
    finally:
        other.db.close()


@pytest.mark.rule("PE-32", "PE-34")
def test_a_torn_tail_is_left_out_and_its_turn_closed(dsh: Run, talk: History, tmp_path: Path) -> None:
    whole = dsh("export", "talk", "--raw").stdout
    file = tmp_path / "torn"
    file.write_text(whole[: whole.index('"text":"é"')])
    done = dsh("import", str(file), "--as", "copy")
    assert (done.returncode, done.stdout) == (0, "copy\n")
    assert done.stderr.splitlines() == [
        f"dsh: {file}: its end is cut off or unreadable and left out (1 lines)",
        f"dsh: {file}: its last turn was open and is closed as interrupted (2 events)",
    ]
    kept = log(talk, "copy")
    assert kept[:-2] == log(talk, "talk")[: len(kept) - 2]
    assert [row[1] for row in kept[-3:]] == ["assistant/chunk", "step/end", "turn/end"]
    assert json.loads(kept[-1][3])["reason"] == {"kind": "interrupted"}
    assert kept[-1][2] == kept[-3][2]
    assert talk.db.rows("SELECT * FROM lease") == []


BAD: dict[str, tuple[str, Any, int, str]] = {
    "an envelope": ('"time"', '"tine"', 2, "event 1 (line 3)"),
    "a number out of place": ('"turn":1,"step":1', '"turn":1,"step":2', 2, "event 2 (line 4)"),
    "no route": ('"provider":"deepseek"', '"provider":""', 2, "event 3 (line 5)"),
    "a removed kind": ('"step/end"', '"mode/set"', 8, "event 8 (line 10)"),
    "not JSON": ('"user"', '"user', 8, "line 3 is damaged"),
    "a hole": ('"seq":3', '"seq":4', 8, "line 5 is damaged"),
}


@pytest.mark.rule("SE-50", "SE-51")
@pytest.mark.parametrize(("old", "new", "code", "said"), BAD.values(), ids=BAD.keys())
def test_the_first_bad_event_is_named_and_nothing_is_stored(
    dsh: Run, talk: History, tmp_path: Path, old: str, new: str, code: int, said: str
) -> None:
    lines = dsh("export", "talk", "--raw").stdout.split("\n")
    line = next(n for n, each in enumerate(lines) if old in each and n > 1)
    lines[line] = lines[line].replace(old, new)
    file = tmp_path / "bad"
    file.write_text("\n".join(lines))
    refused(dsh("import", str(file), "--as", "copy"), code, str(file), said)
    assert talk.db.rows("SELECT id FROM session") == [("talk",)]
    refused(dsh("--db", str(tmp_path / "new.db"), "import", str(file)), code, str(file), said)


@pytest.mark.rule("SE-52", "PE-2")
def test_an_id_in_use_is_refused(dsh: Run, talk: History, tmp_path: Path) -> None:
    assert dsh("export", "talk", "-o", str(tmp_path / "f")).returncode == 0
    before = log(talk, "talk")
    refused(dsh("import", str(tmp_path / "f")), 2, "session talk exists already", "--as NEWID")
    refused(dsh("import", str(tmp_path / "f"), "--as", "talk"), 2, "exists already")
    refused(dsh("import", str(tmp_path / "f"), "--as", ""), 2, "--as")
    refused(dsh("import", str(tmp_path / "f"), str(tmp_path / "f"), "--as", "x"), 2, "--as")
    assert log(talk, "talk") == before


def test_what_show_prints_is_taken_in(dsh: Run, talk: History) -> None:
    shown = dsh("show", "talk", "--json").stdout
    done = dsh("--db", "other.db", "import", "-", stdin=None, input=shown, cwd=str(talk.path.parent))
    assert (done.returncode, done.stdout, done.stderr) == (0, "talk\n", "")
    done = dsh("import", "-", "--as", "copy", stdin=None, input=shown)
    assert (done.returncode, done.stdout) == (0, "copy\n")
    assert log(talk, "copy") == log(talk, "talk")
    bare = shown.replace(',"sessionId":"talk"}\n', "}\n")
    done = dsh("import", "-", stdin=None, input=bare)
    assert done.returncode == 0
    assert log(talk, done.stdout.strip()) == log(talk, "talk")
    part = dsh("show", "talk", "--json", "--from", "3").stdout
    refused(dsh("import", "-", "--as", "part", stdin=None, input=part), 8, "not event 0")


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("export",), "name sessions"),
    (("export", "talk", "--all"), "--all"),
    (("export", "--all"), "--to DIR"),
    (("export", "talk", "talk"), "--to DIR"),
    (("export", "talk", "-o", "x", "--to", "y"), "exclude"),
    (("export", "talk", "-o", ""), "-o is empty"),
    (("export", "--all", "--to", ""), "--to is empty"),
    (("export", "none"), "there is no session"),
    (("import",), "nothing to import"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_wrong_usage_is_told_in_a_line(dsh: Run, talk: History, arguments: tuple[str, ...], said: str) -> None:
    done = dsh(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said.lower() in done.stderr.lower()


def test_no_history_is_nothing_to_export(dsh: Run, tmp_path: Path) -> None:
    assert dsh("export", "--all", "--to", str(tmp_path / "x")).returncode == 0
    refused(dsh("export", "last"), 2, "no history yet")
    assert not (tmp_path / "dsh.db").exists()


def test_compressed_data_is_not_for_a_terminal(terminal: Any, talk: History) -> None:
    code, shown = terminal("export", "talk", "--zstd")
    assert (code, "not for a terminal" in shown) == (2, True)
    code, shown = terminal("export", "talk")
    assert (code, "\x1b" in shown, "\\u2028" in shown) == (0, False, True)


def test_neither_way_starts_the_agent(dsh: Run, talk: History, tmp_path: Path) -> None:
    program = (
        "import sys; from dsh.cli.main import main; code = main(sys.argv[1:]);"
        " sys.exit(code or 10 * bool({'trio', 'httpx'} & set(sys.modules)))"
    )
    for arguments in (["export", "talk", "-o", "f"], ["import", "f", "--as", "copy"]):
        command = [sys.executable, "-c", program, *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=env, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


# --------------------------------------------------------------------------------------------------- when it goes wrong


@pytest.fixture
def long(history: History) -> History:
    """A session that no pipe holds."""
    history.session("long")
    with history.db.transaction():
        history.event("long", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        for n in range(5000):
            history.event("long", "x/noise", {"n": n, "text": os.urandom(50).hex()})
        history.event("long", "turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    return history


@pytest.mark.parametrize("options", [(), ("--zstd",)])
def test_a_reader_that_has_seen_enough(long: History, options: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [*DSH, "export", "long", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    with process.stderr:
        assert (process.wait(timeout=60), process.stderr.read()) == (0, b"")


def limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_leaves_no_half_file(dsh: Run, long: History, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    done = dsh("export", "long", "-o", str(folder / "file"), preexec_fn=limit_files)
    refused(done, 1, str(folder / "file"), "File too large")
    refused(dsh("export", "long", "--to", str(folder), preexec_fn=limit_files), 1, "session.jsonl", "File too large")
    assert list(folder.iterdir()) == []
    with Path("/dev/full").open("w") as full:
        done = dsh("export", "long", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "dsh: the output cannot be written: No space left on device\n"


def test_a_full_disk_under_the_database_stores_nothing(dsh: Run, long: History, tmp_path: Path) -> None:
    assert dsh("export", "long", "-o", str(tmp_path / "file")).returncode == 0
    other = tmp_path / "other.db"
    assert dsh("--db", str(other), "config", "set", "retry.max_retries", "1").returncode in (0, 2)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    done = dsh("--db", str(other), "import", str(tmp_path / "file"), preexec_fn=limit)
    refused(done, 8, str(other))
    assert dsh("--db", str(other), "import", str(tmp_path / "file")).stdout == "long\n"


def test_files_that_cannot_be_read_or_made(dsh: Run, talk: History, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "other.db"))
    refused(dsh(*db, "import", str(tmp_path / "none")), 1, "none: No such file")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(dsh(*db, "import", str(empty)), 2, "holds no exported session")
    (tmp_path / "text").write_text("hello\n")
    refused(dsh(*db, "import", str(tmp_path / "text")), 8, "text: line 1")
    (tmp_path / "packed").write_bytes(zstandard.compress(b'{"type":"session"}\n{}\n'))
    refused(dsh(*db, "import", str(tmp_path / "packed")), 8, "frame 1", "zstd -dc")
    assert not (tmp_path / "other.db").exists()
    refused(dsh(*db, "import", "/dev/zero"), 8, "/dev/zero: line 1")
    refused(dsh("export", "talk", "-o", str(tmp_path / "no" / "file")), 1, "No such file")
    refused(dsh("export", "talk", "-o", str(empty)), 2, "exists already")
    refused(dsh("export", "talk", "--to", str(tmp_path / "text")), 1, "text")
    if os.getuid() != 0:
        for path in (tmp_path / "text", empty):
            path.chmod(0)
        refused(dsh(*db, "import", str(tmp_path / "text")), 1, "Permission denied")
        refused(dsh("export", "talk", "-o", str(empty / "file")), 1, "Permission denied")
        empty.chmod(0o700)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_export_leaves_no_half_file(
    dsh: Run, long: History, tmp_path: Path, number: int, code: int
) -> None:
    whole = tmp_path / "whole"
    assert dsh("export", "long", "-o", str(whole)).returncode == 0
    folder = tmp_path / "out"
    folder.mkdir()
    process = subprocess.Popen([*DSH, "export", "long", "-o", str(folder / "file")], stderr=subprocess.PIPE, cwd=ROOT)
    end = time.monotonic() + 30
    while not list(folder.iterdir()) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.0005)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    left = list(folder.iterdir())
    assert errors == b""
    if process.returncode == 0:  # the machine was busy, and it was over first
        assert [file.read_bytes() for file in left] == [whole.read_bytes()]
    else:
        assert process.returncode == code
        assert [file.name for file in left] in ([], ["file"])  # whole, if it had just got its name
        assert all(file.read_bytes() == whole.read_bytes() for file in left)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_an_interrupted_import_stores_nothing(dsh: Run, long: History, number: int, code: int) -> None:
    whole = dsh("export", "long").stdout.encode()
    process = subprocess.Popen(
        [*DSH, "import", "-", "--as", "copy"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None
    process.stdin.write(whole[:200_000])  # more than a pipe holds: it has begun
    process.stdin.flush()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, b"")
    assert long.db.rows("SELECT id FROM session") == [("long",)]


def test_no_import_takes_a_word_for_the_newest_session_as_an_id(dsh: Run, talk: History, tmp_path: Path) -> None:
    plain = dsh("export", "talk").stdout
    for name in ("-", "last", "a\nb", ""):
        refused(dsh("import", "-", f"--as={name}", stdin=None, input=plain), 2, "cannot be the id of a session")
    file = tmp_path / "named"
    file.write_text(plain.replace('"id":"talk"', '"id":"last"', 1))
    refused(dsh("import", str(file)), 2, "'last' cannot be the id of a session", "--as NEWID")
    assert dsh("import", str(file), "--as", "other").stdout == "other\n"
