"""`dsh show ID:SEQ --trace`, `dsh sessions --parent` and `--roots`."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tests.history import History, text


@pytest.fixture
def compacted(history: History) -> History:
    history.say("s1", "one")  # its prompt is event 1, its answer 5
    history.event("s1", "turn/start", {"turn": 2, "trigger": {"kind": "?"}})
    summary = {"content": [text("sum")], "source": {"kind": "plugin", "plugin": "compact"}}
    nodes = [row[0] for row in history.db.rows("SELECT seq FROM surface WHERE session_id = 's1' ORDER BY position")]
    history.event("s1", "user/message", summary, {"op": "replace", "start": nodes[0], "end": nodes[1]}, sources=nodes)
    return history


@pytest.mark.rule("SQ-20", "SQ-21", "SQ-22")
def test_a_trace_in_lines_and_as_json(compacted: History, dsh: Run) -> None:
    seq = compacted.event("s1", "turn/end", {"turn": 2, "reason": {"kind": "completed"}}) - 1
    done = dsh("show", f"s1:{seq}", "--trace")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"event: {seq}  user/message  current  ")
    assert lines[1:] == ["replaced by: -", "replaces: 1, 5", "made from: 1, 5", "named by: -"]
    found = json.loads(dsh("show", "s1:1", "--trace", "--json").stdout)
    assert found.pop("target")["surface"] == "shadowed"
    assert found == {
        "sessionId": "s1",
        "replacedBy": seq,
        "replacementChain": [seq],
        "replacedEventSeqs": [],
        "sourceEventSeqs": [],
        "derivedEventSeqs": [seq],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["s1", "--trace"], ["s1:900", "--trace"], ["s1:1", "--trace", "--markdown"], ["s1:1", "--trace", "-C", "1"],
        ["s1:1", "--trace", "--from", "1"],
    ],
)  # fmt: skip
def test_what_a_trace_does_not_go_with(compacted: History, dsh: Run, arguments: list[str]) -> None:
    done = dsh("show", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def ids(dsh: Run, *arguments: str) -> list[str]:
    done = dsh("sessions", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line)["id"] for line in done.stdout.splitlines())


@pytest.mark.slow
def test_children_and_roots(history: History, dsh: Run) -> None:
    history.say("root1", "a")
    history.say("root2", "a")
    history.fork("fork", "root1")
    history.session("sub", depth=1, parent="root1")
    history.turn("sub", 1, "a", text("b"))
    history.session("grandchild", depth=2, parent="sub")
    history.turn("grandchild", 1, "a", text("b"))
    history.session("orphan", parent="gone")
    history.turn("orphan", 1, "a", text("b"))
    assert ids(dsh, "--parent", "root1") == ["fork", "sub"]
    assert ids(dsh, "--parent", "sub") == ["grandchild"]
    assert ids(dsh, "--parent", "gone") == ["orphan"]
    assert ids(dsh, "--parent", "root2") == []
    assert ids(dsh, "--roots") == ["root1", "root2"]
    assert dsh("sessions", "--parent", "nobody").returncode == 2
    for both in (["--roots", "--tree"], ["--parent", "root1", "--roots"], ["--parent", "root1", "--tree"]):
        assert dsh("sessions", *both).returncode == 2
