"""What every import keeps: only what is new is added, nothing is ever rewritten, nothing of the source is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh.importing import run
from dsh.importing.model import Home
from dsh.store import writes
from dsh.store.database import Database
from tests.importing.kit import JSONL, append, copied, ends, log, logs, rest, seen, taken, write
from tests.importing.stores import ROOT, SAMPLES, dsh, rows, state

pytestmark = pytest.mark.slow  # each test starts the program, some many times

SESSION = "6aaf1794-44f7-4a6f-99b0-fb2b6fe59d4e"
ID = f"claude-{SESSION}"


def user(said: str, number: int, **more: object) -> dict[str, object]:
    at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z"
    return {"type": "user", "uuid": f"u{number}", "timestamp": at, "cwd": "/w", "sessionId": "s",
            "message": {"role": "user", "content": said}, **more}  # fmt: skip


def answer(said: str, number: int, **more: object) -> dict[str, object]:
    message = {"id": f"m{number}", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
               "content": [{"type": "text", "text": said}], "usage": {"input_tokens": 1}}  # fmt: skip
    return {**user("", number), "type": "assistant", "message": message, **more}


def conversation(*numbers: int) -> list[dict[str, object]]:
    return [each for n in numbers for each in (user(f"question {n}", 2 * n), answer(f"answer {n}", 2 * n + 1))]


def store(db: Path) -> Database:
    return Database.open(db)


# ---------------------------------------------------------------------------------------------------- of every tool


@pytest.mark.parametrize("tool", JSONL)
def test_the_source_is_only_read_and_the_second_time_nothing_is_new(tool: str, tmp_path: Path) -> None:
    place, db = copied(tool, tmp_path), tmp_path / "dsh.db"
    before = state(place)
    first = taken(tool, place, db)
    assert first.new == len(rows(db, "SELECT id FROM session")) > 0
    assert (first.skipped, first.failed, first.empty) == (0, [], 0)
    own = "SELECT 1 FROM message JOIN session ON id = session_id WHERE seq >= coalesce(seed_length, 0)"
    assert first.messages == len(rows(db, own))
    before_again = logs(db)
    again = taken(tool, place, db)
    assert (again.new, again.grown, again.messages, again.unchanged) == (0, 0, 0, first.new)
    assert logs(db) == before_again
    assert state(place) == before


@pytest.mark.parametrize("tool", JSONL)
def test_sessions_say_where_they_are_from(tool: str, tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    taken(tool, copied(tool, tmp_path), db)
    for name, source, cwd, parent in rows(db, "SELECT id, source, cwd, parent_session FROM session"):
        assert name.startswith(f"{tool}-")
        assert cwd == "/home/user/project"
        assert source == tool or parent is not None  # a fork is its parent's
    assert rows(db, "SELECT 1 FROM usage WHERE provider IS NULL OR model IS NULL OR input_tokens IS NULL") == []
    assert rows(db, "SELECT 1 FROM usage") != []


@pytest.mark.slow
@pytest.mark.parametrize("tool", JSONL)
def test_a_file_that_grows_gives_the_log_that_it_gives_at_once(tool: str, tmp_path: Path) -> None:
    """Cut anywhere, also inside a line."""
    whole, at_once = copied(tool, tmp_path / "whole"), tmp_path / "at-once.db"
    taken(tool, whole, at_once)
    path = max(whole.rglob("*.jsonl"), key=lambda each: each.stat().st_size)
    content = path.read_bytes()
    for part in (0.2, 0.45, 0.71, 0.93):
        place, db = copied(tool, tmp_path / str(part)), tmp_path / f"{part}.db"
        growing = place / path.relative_to(whole)
        growing.write_bytes(content[: int(len(content) * part)])
        assert taken(tool, place, db).skipped == 0
        growing.write_bytes(content)
        report = taken(tool, place, db)
        assert report.moved == []
        assert logs(db) == logs(at_once)


@pytest.mark.slow
@pytest.mark.parametrize("tool", JSONL)
def test_a_file_that_rested_and_grows_again_keeps_every_message(tool: str, tmp_path: Path) -> None:
    whole, at_once = copied(tool, tmp_path / "whole"), tmp_path / "at-once.db"
    taken(tool, whole, at_once)
    path = max(whole.rglob("*.jsonl"), key=lambda each: each.stat().st_size)
    content = path.read_bytes()
    for part in (0.3, 0.6, 0.85):
        place, db = copied(tool, tmp_path / str(part)), tmp_path / f"{part}.db"
        growing = place / path.relative_to(whole)
        growing.write_bytes(content[: int(len(content) * part)])
        rest(place)
        taken(tool, place, db)
        assert rows(db, "SELECT id FROM session WHERE open_turn IS NOT NULL") == []
        growing.write_bytes(content)
        report = taken(tool, place, db)
        said = [text for name in logs(db) for text in seen(db, name)]
        for name in logs(at_once):
            assert [text for text in seen(at_once, name) if text.split(" ", 1)[1] not in " ".join(said)] == []
        assert report.failed == []


@pytest.mark.parametrize("tool", JSONL)
def test_a_copy_in_another_place_is_the_same_session(tool: str, tmp_path: Path) -> None:
    db = tmp_path / "dsh.db"
    taken(tool, copied(tool, tmp_path / "a"), db)
    before = logs(db)
    report = taken(tool, copied(tool, tmp_path / "b"), db)
    assert (report.new, report.grown, report.moved) == (0, 0, [])
    assert logs(db) == before


# ----------------------------------------------------------------------------------------------------- what is new


def test_what_was_appended_is_appended(tmp_path: Path) -> None:
    path, db = write(tmp_path / "p" / "s.jsonl", *conversation(1)), tmp_path / "dsh.db"
    taken("claude", path, db)
    before = log(db, "claude-s")
    append(path, *conversation(2))
    report = taken("claude", path, db)
    assert (report.new, report.grown, report.messages) == (0, 1, 2)
    assert log(db, "claude-s")[: len(before)] == before
    assert seen(db, "claude-s") == [
        "user question 1", "assistant answer 1", "user question 2", "assistant answer 2",
    ]  # fmt: skip


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    lines = [json.dumps(each) for each in conversation(1, 2)]
    path, db = write(tmp_path / "s.jsonl", "\n".join(lines)[:-30]), tmp_path / "dsh.db"
    report = taken("claude", path, db)
    assert (report.skipped, report.messages) == (0, 3)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert taken("claude", path, db).messages == 1
    assert seen(db, "claude-s")[-1] == "assistant answer 2"


def test_a_broken_record_is_skipped_counted_and_named(tmp_path: Path) -> None:
    first, second = conversation(1), conversation(2)
    path = write(tmp_path / "s.jsonl", *first, b"{oops\n", b"[1]\n", b"\x00\x00\x00\n", *second)
    report = taken("claude", path, tmp_path / "dsh.db")
    assert report.skipped == 3
    assert [(where, reason) for _, where, reason in report.named] == [
        ("line 3", "is not JSON"), ("line 4", "is no record"), ("line 5", "is not text"),
    ]  # fmt: skip
    assert len(seen(tmp_path / "dsh.db", "claude-s")) == 4


def test_an_open_turn_stays_open_until_the_file_has_rested(tmp_path: Path) -> None:
    asked = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "sleep"}}
    calls = answer("", 3)
    calls["message"] = {**calls["message"], "content": [asked], "stop_reason": "tool_use"}  # type: ignore[dict-item]
    path, db = write(tmp_path / "s.jsonl", *conversation(1), user("run it", 2), calls), tmp_path / "dsh.db"
    taken("claude", path, db)
    assert rows(db, "SELECT open_turn FROM session") == [(2,)]
    assert seen(db, "claude-s")[-1] == "user run it"  # the answer may still grow
    rest(path)
    report = taken("claude", path, db)
    assert report.grown == 1
    assert ends(db, "claude-s") == ["completed", "interrupted"]
    assert seen(db, "claude-s")[-1].startswith("error The session ended before")
    again = [{"type": "tool_result", "tool_use_id": "c1", "content": "woke up"}]
    append(path, user("", 4, message={"role": "user", "content": again}), *conversation(3))
    report = taken("claude", path, db)
    assert (report.moved, report.failed) == ([], [])
    assert seen(db, "claude-s")[3:] == [
        'call Bash {"command": "sleep"}', "error woke up", "user question 3", "assistant answer 3",
    ]  # fmt: skip


def test_a_session_that_went_on_here_is_not_touched_and_the_rest_forks_off(tmp_path: Path) -> None:
    path, db = write(tmp_path / "s.jsonl", *conversation(1, 2)), tmp_path / "dsh.db"
    taken("claude", path, db)
    opened = store(db)
    length = opened.rows("SELECT length FROM session")[0][0]
    at = writes.now_ms()
    trigger = {"kind": "message", "source": {"kind": "user"}}
    said = {"content": [{"type": "text", "text": "mine"}], "source": {"kind": "user"}}
    for seq, (kind, data, op) in enumerate(
        [
            ("turn/start", {"turn": 3, "trigger": trigger}, None),
            ("user/message", said, '"append"'),
            ("turn/end", {"turn": 3, "reason": {"kind": "aborted"}}, None),
        ],
        length,
    ):
        writes.insert_event(opened, "claude-s", seq, kind, at, json.dumps(data), None, op)
    opened.close()
    before = log(db, "claude-s")
    assert taken("claude", path, db).moved == []  # nothing new there, so nothing to say
    append(path, *conversation(3))
    report = taken("claude", path, db)
    assert report.moved == [("claude-s", "claude-s-2")]
    assert log(db, "claude-s") == before
    assert rows(db, "SELECT parent_session, boundary FROM fork") == [("claude-s", length - 1)]
    assert seen(db, "claude-s-2")[-3:] == ["assistant answer 2", "user question 3", "assistant answer 3"]
    append(path, *conversation(4))
    report = taken("claude", path, db)
    assert (report.grown, report.moved) == (1, [])
    assert seen(db, "claude-s-2")[-1] == "assistant answer 4"


def test_a_rewritten_file_forks_off_where_it_began_to_differ(tmp_path: Path) -> None:
    path, db = write(tmp_path / "s.jsonl", *conversation(1, 2, 3)), tmp_path / "dsh.db"
    taken("claude", path, db)
    before = log(db, "claude-s")
    write(path, *conversation(1), user("another", 4), answer("so be it", 5))
    report = taken("claude", path, db)
    assert report.moved == [("claude-s", "claude-s-2")]
    assert log(db, "claude-s") == before
    assert seen(db, "claude-s-2") == [
        "user question 1", "assistant answer 1", "user another", "assistant so be it",
    ]  # fmt: skip
    assert rows(db, "SELECT parent_session FROM fork WHERE id = 'claude-s-2'") == [("claude-s",)]


def test_a_file_that_became_another_is_a_session_of_its_own(tmp_path: Path) -> None:
    path, db = write(tmp_path / "s.jsonl", *conversation(1)), tmp_path / "dsh.db"
    taken("claude", path, db)
    write(path, *conversation(7))
    assert taken("claude", path, db).moved == [("claude-s", "claude-s-2")]
    assert rows(db, "SELECT id FROM fork") == []
    assert seen(db, "claude-s-2") == ["user question 7", "assistant answer 7"]


def test_a_file_that_became_shorter_takes_nothing_away(tmp_path: Path) -> None:
    path, db = write(tmp_path / "s.jsonl", *conversation(1, 2)), tmp_path / "dsh.db"
    taken("claude", path, db)
    before = logs(db)
    write(path, *conversation(1))
    report = taken("claude", path, db)
    assert (report.new, report.grown, report.moved) == (0, 0, [])
    assert logs(db) == before


def test_a_deleted_session_comes_back_only_when_it_is_asked_for(tmp_path: Path) -> None:
    home, db = tmp_path / "home", tmp_path / "dsh.db"
    path = write(home / ".claude" / "projects" / "p" / "s.jsonl", *conversation(1))

    def everything() -> run.Report:
        work = run.Import(Home(str(home), {}))
        work.find("claude")
        (report,) = work.run(lambda: store(db))
        return report

    assert everything().new == 1
    opened = store(db)
    writes.delete_session(opened, "claude-s")
    opened.close()
    append(path, *conversation(2))
    assert everything().new == 0
    assert logs(db) == {}
    moved = path.rename(path.with_name("copy.jsonl"))  # under another name it is another session
    moved.rename(path)
    assert taken("claude", path, db).new == 1
    assert len(seen(db, "claude-s")) == 4


def test_a_copy_that_goes_on_shares_what_it_copied(tmp_path: Path) -> None:
    place, db = tmp_path / "p", tmp_path / "dsh.db"
    rest(write(place / "a.jsonl", *conversation(1, 2)), 1_700_000_000)
    rest(write(place / "b.jsonl", *conversation(1, 2, 3)), 1_700_000_900)
    report = taken("claude", place, db)
    assert report.new == 2
    [(parent, boundary)] = rows(db, "SELECT parent_session, boundary FROM fork WHERE id = 'claude-b'")
    assert (parent, boundary) == ("claude-a", len(log(db, "claude-a")) - 1)
    assert rows(db, "SELECT session_id, sum(NOT inherited) FROM usage GROUP BY 1") == [("claude-a", 2), ("claude-b", 1)]


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    script = ROOT / "scripts" / "lib" / "bench_import.py"
    subprocess.run([sys.executable, str(script), "make", str(place), "30", "200"], check=True, capture_output=True)
    rest(place)
    taken("claude", place, tmp_path / "whole.db")
    db = tmp_path / "dsh.db"
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "dsh", "import", "claude", str(place), "--db", str(db)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 30
        stored = 0
        while stored < 4 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
            stored = len(rows(db, "SELECT 1 FROM import_source")) if db.exists() and db.stat().st_size else 0
        process.kill()
        process.wait()
    report = taken("claude", place, db)
    assert (report.moved, report.failed) == ([], [])
    assert logs(db) == logs(tmp_path / "whole.db")


@pytest.mark.slow
def test_two_imports_at_once_leave_what_one_leaves(tmp_path: Path) -> None:
    place, db = tmp_path / "tree", tmp_path / "dsh.db"
    script = ROOT / "scripts" / "lib" / "bench_import.py"
    subprocess.run([sys.executable, str(script), "make", str(place), "20", "120"], check=True, capture_output=True)
    rest(place)
    taken("claude", place, tmp_path / "whole.db")
    program = [sys.executable, "-m", "dsh", "import", "claude", str(place), "--db", str(db)]
    both = [subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=-1, stdout=-1) for _ in "ab"]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert process.returncode in (0, 1)
        assert all(b"another import is at it" in line for line in said.splitlines())
    report = taken("claude", place, db)
    assert (report.moved, report.failed) == ([], [])
    assert logs(db) == logs(tmp_path / "whole.db")


# --------------------------------------------------------------------------------------------------- whatever is there

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = {
    "claude": ["type", "message", "uuid", "parentUuid", "content", "role", "id", "isSidechain", "timestamp", "cwd",
               "usage", "model", "tool_use_id", "input", "text", "attachment", "summary", "leafUuid"],
    "codex": ["type", "payload", "timestamp", "role", "content", "id", "call_id", "output", "info", "message",
              "replacement_history", "last_token_usage", "source", "summary", "arguments"],
    "gemini": ["id", "type", "content", "toolCalls", "$set", "$rewindTo", "messages", "sessionId", "projectHash",
               "tokens", "thoughts", "functionResponse", "result", "args"],
    "pi": ["type", "id", "parentId", "message", "role", "content", "usage", "timestamp", "stopReason", "summary",
           "firstKeptEntryId", "toolCallId", "arguments"],
}  # fmt: skip
_WORDS = ["user", "assistant", "message", "response_item", "event_msg", "session", "gemini", "tool_use", "tool_result",
          "toolCall", "toolResult", "text", "thinking", "function_call", "function_call_output", "compaction", "u1",
          "1", "reasoning", "2026-01-01T00:00:00Z", "compacted", "task_complete", "token_count",
          "session_meta"]  # fmt: skip


def _records(tool: str) -> st.SearchStrategy[list[object]]:
    fields = st.sampled_from(_FIELDS[tool])
    leaf = st.sampled_from(_WORDS) | _values
    nested = st.recursive(leaf, lambda part: st.dictionaries(fields, part, max_size=5) | st.lists(part, max_size=3))
    return st.lists(st.dictionaries(fields, nested, min_size=1, max_size=8), min_size=1, max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("tool", JSONL)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_record_holds_the_logs_are_sound(tool: str, tmp_path: Path, data: st.DataObject) -> None:
    name = {"codex": "rollout-x.jsonl", "gemini": "session-x.jsonl"}.get(tool, "x.jsonl")
    path, db = write(tmp_path / name, *data.draw(_records(tool))), tmp_path / "dsh.db"
    db.unlink(missing_ok=True)
    rest(path)
    report = taken(tool, path, db)
    assert report.failed == []


@pytest.mark.parametrize("tool", JSONL)
def test_hostile_files_are_passed_over_and_named(tool: str, tmp_path: Path) -> None:
    place = copied(tool, tmp_path)
    good = max(place.rglob("*.jsonl"), key=lambda each: each.stat().st_size)
    beside, name = good.parent, good.name
    stem = name.removesuffix(".jsonl")
    (beside / f"{stem}-binary.jsonl").write_bytes(bytes(range(256)) * 40 + b"\n")
    (beside / f"{stem}-deep.jsonl").write_bytes(b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"\n")
    (beside / f"{stem}-empty.jsonl").write_bytes(b"")
    (beside / f"{stem}-scalar.jsonl").write_bytes(b'7\n"text"\nnull\n[]\n')
    (beside / f"{stem}-latin.jsonl").write_bytes('{"type":"user","message":"é"}\n'.encode("latin-1"))
    os.mkfifo(beside / f"{stem}-pipe.jsonl")
    (beside / f"{stem}-loop.jsonl").symlink_to(beside / f"{stem}-loop.jsonl")
    (beside / f"{stem}-folder.jsonl").mkdir()
    report = taken(tool, place, tmp_path / "dsh.db")
    assert report.failed == []
    assert report.skipped >= 6
    assert {Path(path).name.rpartition("-")[2] for path, _, _ in report.named} >= {
        "binary.jsonl", "deep.jsonl", "scalar.jsonl",
    }  # fmt: skip


@pytest.mark.slow
def test_a_line_without_end_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(user("before", 1)).encode() + b'\n{"type":"user","x":"')
        for _ in range(200):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + json.dumps(answer("after", 2)).encode() + b"\n")
    db = tmp_path / "dsh.db"
    with (tmp_path / "said").open("w+b") as said:
        program = [sys.executable, "-m", "dsh", "import", "claude", str(path), "--db", str(db)]
        # A child's peak counts what it shared with its parent before it became another program: a small one starts it.
        small = (
            "import resource, subprocess, sys\ncode = subprocess.call(sys.argv[1:])\n"
            "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-I", "-c", small, *program], env=env, stdout=said, stderr=said, check=True)
        said.seek(0)
        told = said.read().decode()
    peak, code = told.split("peak ")[1].split()
    assert code == "0", told
    assert int(peak) / (1024 if sys.platform == "linux" else 1024 * 1024) < 200  # MiB, as long as the line
    assert "line 2: is longer than 64 MiB" in told
    assert seen(db, "claude-s") == ["user before", "assistant after"]


def test_halves_of_characters_are_mended(tmp_path: Path) -> None:
    broken = json.dumps(user("X", 1)).replace('"X"', '"half \\ud83d and \\ud83d\\ude00 and \\u0000"')
    path = write(tmp_path / "s.jsonl", broken.encode() + b"\n", answer("fine", 2))
    report = taken("claude", path, tmp_path / "dsh.db")
    assert report.skipped == 0
    assert seen(tmp_path / "dsh.db", "claude-s")[0] == "user half \ufffd and \U0001f600 and \0"


# ----------------------------------------------------------------------------------------------------- the command


def homes(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "user"
    write(home / ".claude" / "projects" / "p" / "s.jsonl", *conversation(1), b"{broken\n")
    return {"HOME": str(home), "CODEX_HOME": str(copied("codex", tmp_path).parent / "none")}


def test_all_finds_what_is_there_and_says_a_line_for_each_tool(tmp_path: Path) -> None:
    env = homes(tmp_path)
    codex = tmp_path / "codex-home" / "sessions"
    codex.parent.mkdir()
    copied("codex", tmp_path / "more").rename(codex)
    env["CODEX_HOME"] = str(codex.parent)
    done = dsh("import", "--all", **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "claude: 1 new, 0 grown, 0 unchanged, 2 messages, 1 record skipped",
        "codex: 1 new, 0 grown, 0 unchanged, 10 messages",
    ]
    assert "s.jsonl:line 3: is not JSON" in done.stderr
    done = dsh("import", "--all", "--json", **env)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["tool"], each["new"], each["unchanged"]) for each in found] == [("claude", 0, 1), ("codex", 0, 1)]
    assert done.stderr == ""


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    env, db = homes(tmp_path), tmp_path / "dsh.db"
    done = dsh("import", "claude", "--dry-run", **env)
    assert (done.returncode, db.exists()) == (0, False)
    assert done.stdout == "claude: 1 would be new, 0 would be grown, 0 unchanged, 2 messages, 1 record skipped\n"
    dsh("import", "claude", **env)
    append(tmp_path / "user" / ".claude" / "projects" / "p" / "s.jsonl", *conversation(2))
    before = logs(db)
    done = dsh("import", "claude", "-n", "--json", **env)
    assert [json.loads(done.stdout)[key] for key in ("new", "grown", "messages")] == [0, 1, 2]
    assert logs(db) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to import"),
        (["--all", "claude"], "--all goes without names"),
        (["claude", "/nowhere"], "/nowhere does not exist"),
        (["claude", "--as", "x"], "--as goes with"),
        (["dsh"], "name the files"),
        (["dsh", "x", "--dry-run"], "go with the history of another tool"),
        (["clode"], "clode"),
    ],
)
def test_wrong_usage_is_told_in_a_line(words: list[str], says: str) -> None:
    done = dsh("import", *words)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


def test_no_history_is_an_answer(tmp_path: Path) -> None:
    done = dsh("import", "codex")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "dsh: no history of Codex CLI was found in ~/.codex/sessions or ~/.codex/archived_sessions\n"
    assert dsh("import", "--all").returncode == 1


def test_what_was_imported_is_searched_shown_and_counted(tmp_path: Path) -> None:
    assert dsh("import", "claude", str(SAMPLES / "claude")).returncode == 0
    assert ID in dsh("search", "again please").stdout
    assert "All done: the command printed hello." in dsh("show", ID).stdout
    assert "claude-opus-4-8" in dsh("usage", "--by", "model").stdout


def test_a_whole_file_that_cannot_be_read_is_named_and_the_others_are_taken(tmp_path: Path) -> None:
    place = copied("gemini", tmp_path)
    (place / "project" / "chats" / "session-broken.json").write_text("{", encoding="utf-8")
    rest(place)
    done = dsh("import", "gemini", str(place))
    assert done.returncode == 1
    assert done.stdout == "gemini: 1 new, 0 grown, 0 unchanged, 9 messages, 1 file failed\n"
    assert done.stderr.endswith("session-broken.json: is not JSON\n")
    again = dsh("import", "gemini", str(place))  # it is not tried again before it has changed
    assert (again.returncode, again.stderr) == (0, "")


def test_a_person_sees_how_far_it_is(tmp_path: Path) -> None:
    import pty

    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dsh", "import", "claude", str(copied("claude", tmp_path))],
        stdin=side, stdout=subprocess.PIPE, stderr=side,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )  # fmt: skip
    os.close(side)
    shown = b""
    try:
        while piece := os.read(main, 65536):
            shown += piece
    except OSError:  # how Linux tells that the other side is closed
        pass
    os.close(main)
    out, _ = process.communicate(timeout=60)
    assert out.decode().startswith("claude: 4 new, 0 grown, 0 unchanged, ")
    assert "claude ░" in shown.decode()
    assert shown.decode().endswith("\r\x1b[2K")  # and nothing is left of it
