"""Datasette, a program that knows nothing of ours, shows every public view."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsh.query import catalog
from dsh.store import writes
from tests.history import History, call, text
from tests.programs import installed

FILLED = {"session", "fork", "event", "lineage", "surface", "surface_history", "message", "turn", "step", "tool_call",
    "request_header", "todo", "title", "session_title", "summary", "lease", "activity", "inbox", "setting", "cache",
    "trusted_folder", "migration", "import_source", "saved_query", "store", "search_document"}  # fmt: skip


@pytest.fixture(scope="session")
def datasette() -> Path:
    return installed("datasette", "datasette>=0.64,<1")


@contextmanager
def served(program: Path, *arguments: str) -> Iterator[http.client.HTTPConnection]:
    """Datasette on a loopback port of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    limits = ["--setting", "sql_time_limit_ms", "10000", "--setting", "suggest_facets", "off"]
    command = [str(program), "serve", *arguments, "--host", "127.0.0.1", "--port", str(port), *limits]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert server.poll() is None, server.stdout and server.stdout.read()
                time.sleep(0.1)
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                yield connection
        finally:
            server.kill()


def get(connection: http.client.HTTPConnection, path: str) -> Any:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, (path, answer.status, body[:2000])
    return json.loads(body)


@pytest.fixture
def worked(tmp_path: Path) -> Iterator[History]:
    """A history with a row for every view that can have one."""
    made = History(tmp_path / "dsh.db")
    made.session("s", cwd="/w")
    made.turn("s", 1, "look", text("ok"), call("c1", "bash", "{}"), results={"c1": "x"})
    made.fork("child", "s")
    made.event("child", "turn/start", {"turn": 2, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    made.event("child", "todo/write", {"todos": [{"status": "pending", "content": "wash"}]})
    made.event("child", "session/title", {"title": "t", "source": {"kind": "user"}})
    writes.claim_lease(made.db, "child", "me")
    writes.put_message(made.db, "child", "m", "followup", [text("hi")], {"kind": "user"})
    writes.set_setting(made.db, "a", 1)
    writes.set_cache(made.db, "a", 1)
    writes.trust_folder(made.db, "/w")
    writes.note_import(made.db, "claude", "/x", "1", {})
    writes.save_query(made.db, "q", "select 1", None)
    writes.refresh_search(made.db)
    yield made
    made.db.close()


@pytest.mark.slow
@pytest.mark.parametrize("immutable", [False, True])
def test_datasette_shows_every_public_view(datasette: Path, worked: History, tmp_path: Path, immutable: bool) -> None:
    path = worked.path
    if immutable:
        path = tmp_path / "copy" / "dsh.db"
        path.parent.mkdir()
        worked.db.backup(path)
    with served(datasette, *(["-i"] if immutable else []), str(path)) as connection:
        listed = get(connection, "/dsh.json")
        views = {view.name: view for view in catalog.views(worked.db)}
        assert set(views) <= {view["name"] for view in listed["views"]}
        for name, view in views.items():
            shown = get(connection, f"/dsh/{name}.json?_size=1&_shape=objects")
            here = worked.db.rows(f"SELECT * FROM {name} LIMIT 1")
            assert len(shown["rows"]) == len(here), name
            assert here or name not in FILLED, name
            for row in shown["rows"]:
                assert list(row) == [column.name for column in view.columns], name
        if not immutable:  # what is appended meanwhile is seen
            before = get(connection, "/dsh.json?sql=select+count(*)+as+n+from+event")["rows"]
            worked.say("more", "hello")
            after = get(connection, "/dsh.json?sql=select+count(*)+as+n+from+event")["rows"]
            assert after != before
