"""P1: an approval nobody can answer. P8: children that outlive their call. P9: edits of a file with CRLF ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.provider import FakeProvider, text, tool_call
from tests.shell.process import Dsh, alive, finish


@pytest.mark.rule("HD-13", "TL-34")
def test_p1_a_question_without_anybody_to_answer_is_refused_at_once(
    dsh: Dsh, fake: FakeProvider, tmp_path: Path
) -> None:
    (tmp_path / "careful.py").write_text(
        "def setup(ctx):\n"
        "    async def ask(execution, next_):\n"
        "        return {'kind': 'ask', 'reason': 'it runs a command'}\n"
        "    ctx.on('tools/pre-execute', ask)\n"
    )
    fake.script(tool_call("bash", {"command": "echo hi > a.txt"}), text("ok"))
    path = os.pathsep.join([dsh.env["PYTHONPATH"], str(tmp_path)])
    done = dsh("run", "x", env={"DSH_PLUGINS": "careful", "PYTHONPATH": path})
    assert done.seconds < 5
    assert not (dsh.cwd / "a.txt").exists()
    refusal = fake.requests[1].messages[-1]
    assert (refusal["role"], refusal["tool_call_id"]) == ("tool", "call_1")
    assert "nobody can be asked" in refusal["content"]


@pytest.mark.slow
def test_p8_a_background_child_does_not_hold_its_call_up(dsh: Dsh, fake: FakeProvider) -> None:
    fake.script(tool_call("bash", {"command": "sleep 475.5 & echo hi", "timeoutMs": 20_000}), text("done"))
    done = dsh("run", "x")
    assert (done.code, done.out) == (0, b"done\n")
    [(ms, content)] = dsh.rows("SELECT ms, content FROM tool_call")
    assert ms < 3000
    assert '"hi' in content
    assert alive("sleep 475.5") == []


@pytest.mark.slow
def test_p8_a_grandchild_that_ignores_sigterm_ends_with_the_time_limit(dsh: Dsh, fake: FakeProvider) -> None:
    command = "(trap '' TERM; sleep 476.5) & echo part; wait"
    fake.script(tool_call("bash", {"command": command, "timeoutMs": 1000}), text("done"))
    assert dsh("run", "x").code == 0
    [(ms,)] = dsh.rows("SELECT ms FROM tool_call")
    assert ms < 4000
    content = fake.requests[1].messages[-1]["content"]
    assert "part" in content
    assert "timed out" in content
    assert alive("sleep 476.5") == []


@pytest.mark.slow
@pytest.mark.rule("HD-10")
def test_p8_ctrl_c_ends_it_too(dsh: Dsh, fake: FakeProvider) -> None:
    command = "(trap '' TERM; sleep 477.5) & echo part; wait"
    fake.script(tool_call("bash", {"command": command}), text("went on"))
    process = dsh.start("run", "x")
    dsh.wait_for(lambda: alive("sleep 477.5"))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert time.monotonic() - began < 5
    assert alive("sleep 477.5") == []
    assert dsh("run", "-c", "go on").out == b"went on\n"


BOM = b"\xef\xbb\xbf"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\n", "a\nb", "a\nB", b"a\r\nB\r\nc\n"),
        (BOM + b"a\r\nb\r\nc\n", "a\nb", "a\nB", BOM + b"a\r\nB\r\nc\n"),
        (b"a\r\nb\r\nc", "a\nb", "a\nB", b"a\r\nB\r\nc"),
        (b"a\r\nb\r\n", "b", "b\nb2", b"a\r\nb\r\nb2\r\n"),
        (b"a\nb\n", "a\nb", "a\nB", b"a\nB\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\r\nB", b"a\r\nB\r\n"),
    ],
    ids=["mixed ends", "byte order mark", "no final newline", "a new line", "plain LF", "CRLF in the request"],
)
def test_p9_an_edit_changes_what_it_says_and_nothing_else(
    dsh: Dsh, fake: FakeProvider, before: bytes, old: str, new: str, after: bytes
) -> None:
    file = dsh.cwd / "f.txt"
    file.write_bytes(before)
    file.chmod(0o640)
    fake.script(
        tool_call("read", {"file_path": "f.txt"}),
        tool_call("edit", {"file_path": "f.txt", "old_string": old, "new_string": new}),
        text("done"),
    )
    assert dsh("run", "x").code == 0
    assert [d["isError"] for d in dsh.data("tool/result")] == [False, False]
    assert file.read_bytes() == after
    assert file.stat().st_mode & 0o777 == 0o640


def test_p9_the_diff_for_people_has_one_changed_line(dsh: Dsh, fake: FakeProvider) -> None:
    (dsh.cwd / "f.txt").write_bytes(b"a\r\nb\r\nc\n")
    fake.script(
        tool_call("read", {"file_path": "f.txt"}),
        tool_call("edit", {"file_path": "f.txt", "old_string": "a\nb", "new_string": "a\nB"}),
    )
    assert dsh("run", "x").code == 0
    [diff] = dsh.data("tool/result")[1]["meta"]["diffs"]
    pairs = zip(diff["oldText"].splitlines(True), diff["newText"].splitlines(True), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == [("b\n", "B\n")]
