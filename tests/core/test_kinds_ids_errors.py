"""Open kinds, ids and the tree of errors (CO-1 to CO-6, CO-50, CO-51)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsh.core import errors, kinds
from dsh.core.errors import DshError, InvariantError, SessionError, StoreError, exit_code
from dsh.core.events import event_type
from dsh.core.ids import call_id, minted_call_id, new_session_id, session_id
from dsh.core.kinds import ClosedKind, OpenKind

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("CO-1", "CO-5")
def test_an_open_kind_takes_new_tags_once() -> None:
    kind = OpenKind("colour", "red")
    kind.declare("blue")
    assert list(kind) == ["red", "blue"]
    with pytest.raises(InvariantError) as caught:
        kind.declare("red")
    assert caught.value.code == "TAG_DUPLICATE"
    for no_name in (5, "", None):
        with pytest.raises(InvariantError):
            kind.declare(no_name)  # type: ignore[arg-type]
    with pytest.raises(InvariantError):
        OpenKind("colour", "red", "red")


@pytest.mark.rule("CO-2")
def test_an_unknown_tag_of_an_open_kind_is_only_unknown() -> None:
    assert "image" not in kinds.content_block
    assert 5 not in kinds.content_block
    assert not hasattr(kinds.content_block, "require")


@pytest.mark.rule("CO-4")
def test_an_unknown_tag_of_a_closed_kind_is_an_error() -> None:
    kinds.stream_chunk.require("usage")
    with pytest.raises(InvariantError) as caught:
        kinds.stream_chunk.require("audio-delta")
    assert caught.value.code == "TAG_UNKNOWN"
    assert isinstance(kinds.stream_chunk, ClosedKind)


@pytest.mark.rule("CO-1")
def test_the_unions_that_plugins_extend_are_open() -> None:
    for kind in (
        kinds.content_block,
        kinds.message_source,
        kinds.finish_reason,
        kinds.turn_trigger,
        kinds.turn_end_reason,
        event_type,
    ):
        assert not isinstance(kind, ClosedKind)


@pytest.mark.rule("CO-6")
def test_ids_are_the_strings_they_are() -> None:
    assert type(session_id("a")) is str
    assert minted_call_id(3) == "call-3"
    assert call_id("x") == "x"
    with pytest.raises(ValueError, match="empty"):
        session_id("")


@pytest.mark.rule("SE-52")
def test_minted_ids_sort_by_age_and_do_not_repeat() -> None:
    assert new_session_id(1) < new_session_id(2) < new_session_id(10**12) < new_session_id(10**13)
    ids = {new_session_id(5) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch("[0-9a-z]{18}", i) for i in ids)


@pytest.mark.slow
@pytest.mark.rule("CO-6")
def test_the_type_checker_keeps_ids_apart(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from dsh.core.ids import CallId, SessionId, call_id\n"
        "def show(id: SessionId) -> None: ...\n"
        "show(call_id('x'))\n"
        "show('x')\n"
        "right: CallId = call_id('x')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(wrong)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert [line.split(":")[1] for line in done.stdout.splitlines() if "[arg-type]" in line] == ["3", "4"]


@pytest.mark.rule("CO-50")
def test_every_error_has_a_message_and_a_stable_code() -> None:
    tree = [DshError]
    while tree:
        kind = tree.pop()
        tree += kind.__subclasses__()
        assert re.fullmatch("[A-Z]+(_[A-Z]+)*", kind.code), kind
    error = SessionError("words", code="OPEN_TURN", hint="fork at the end of a turn")
    error.__cause__ = ValueError("why")
    assert (error.message, str(error), error.code, error.hint) == (
        "words",
        "words",
        "OPEN_TURN",
        "fork at the end of a turn",
    )
    assert exit_code(error.code) == 2
    assert exit_code("NEVER_HEARD_OF") == 1
    assert exit_code("DB_BUSY") == exit_code("SESSION_LEASED") == 8


@pytest.mark.rule("CO-51")
def test_a_foreign_failure_is_unknown_and_keeps_its_words() -> None:
    class Foreign(Exception):
        code = "QUOTA"

    assert errors.code_of(Foreign("x")) is None
    assert errors.failure_object(Foreign("broke")) == {"code": "UNKNOWN", "message": "broke", "retryable": False}
    assert errors.failure_object(StoreError("locked", code="DB_BUSY"))["retryable"] is True


@pytest.mark.rule("CO-51")
def test_rendering_a_failure_never_fails() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Group(ExceptionGroup[Exception]):
        pass

    one, two = DshError("outer"), Broken()
    one.__cause__ = two
    two.__cause__ = one
    assert errors.render_chain(one) == "outer: <unrenderable value>: <circular cause>"
    assert errors.render_chain(Group("several", [ValueError("a"), KeyError("b")])) == "several [a; 'b']"
