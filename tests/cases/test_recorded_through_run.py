"""Every recorded stream through the real program, and what the session says to the next provider.

The streams are served in small writes, so that every event, line and character is split somewhere. A second run then
goes on with each session at a provider that refuses what real ones refuse.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.provider import FakeProvider, calls, raw, text
from tests.shell.process import Done, Dsh

pytestmark = pytest.mark.slow

BATCHES = 8
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]")

# whose streams leave a history that is not like the others
_ODD_CALLS = {"groq", "meta", "mistral", "moonshot", "nasty", "ollama", "proxy"}

# exit codes that a finish reason does not tell
_CODES = {
    "groq/gpt-oss-tool-use-failed": 4,
    "openrouter/minimax-stream-error": 4,
    "huggingface/together-deepseek-r1-CUT": 5,
    "llama-server/client-disconnect": 5,
    "nasty/error-json-200": 4,
    "nasty/json-200": 0,
    **dict.fromkeys(
        (
            "nasty/done-only",
            "nasty/empty-body",
            "nasty/error-event",
            "nasty/error-in-choice",
            "nasty/error-object-midstream",
            "nasty/html-200",
            "nasty/ndjson-200",
            "nasty/no-done-no-finish",
            "nasty/reset-mid-chunk",
            "nasty/truncated-json",
            "nasty/truncated-tool-args",
        ),
        5,
    ),
}


@pytest.fixture(scope="session")
def server(fixtures: Path) -> Iterator[str]:
    """The recordings' own server, with the settings in front of the path: a base URL has no query."""
    spec = importlib.util.spec_from_file_location("replay", fixtures / "sse" / "tools" / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    replay = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(replay)

    class Handler(replay.Handler):  # type: ignore[misc, name-defined]
        path: str

        def do_POST(self) -> None:
            settings, _, rest = self.path.removeprefix("/").partition("/")
            name = rest.removesuffix("/chat/completions")
            body = fixtures / "sse" / f"{name}.body"
            if body.is_file():
                self._whole(body)
                return
            self.path = f"/{rest}?{settings if '=' in settings else ''}"
            super().do_POST()

        def _whole(self, file: Path) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status = file.with_suffix(".raw").read_bytes().split()[1]
            content = file.read_bytes()
            self.send_response(int(status))
            self.send_header("content-type", "application/json; charset=utf-8")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    served = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture
def dsh(tmp_path: Path) -> Dsh:
    return Dsh(tmp_path, DSH_RETRY_MAX_TRANSIENT_RETRIES="0", DSH_DEBUG="1")


def _ask(dsh: Dsh, url: str, *words: str) -> Done:
    return dsh("run", "--base-url", url, "-m", "x", "--max-steps", "2", *words, "hi")


def _check_errors(name: str, done: Done) -> None:
    assert "Traceback" not in done.errors, (name, done.errors)
    assert not _CONTROL.search(done.errors), (name, done.err)
    assert all(len(line) < 2200 for line in done.errors.splitlines()), name


def _lines(done: Done) -> list[dict[str, Any]]:
    """JSON Lines end with LF alone; an answer may hold what else Python takes for a line's end."""
    return [json.loads(line) for line in done.text.split("\n") if line]


def _said(content: list[dict[str, Any]], kind: str) -> str:
    return "".join(b["text"] for b in content if b["type"] == kind)


def _code(name: str, expect: dict[str, Any]) -> int:
    if name in _CODES:
        return _CODES[name]
    return 6 if expect["toolCalls"] or expect["finish"] == "length" else 0


def _check_message(name: str, expect: dict[str, Any], done: Done) -> None:
    """The first answer, as it was logged, against what the recording holds."""
    lines = _lines(done)
    said = [line["data"] for line in lines if line["type"] == "assistant/message"]
    if _code(name, expect) in (4, 5):
        assert not said, name
        assert lines[-1]["error"]["message"] in done.errors, name
        chunks = [line["data"]["chunk"] for line in lines if line["type"] == "assistant/chunk"]
        kept = "".join(c["text"] for c in chunks if c["type"] == "text-delta")
        assert kept == (expect["text"] or ""), name
        return
    content = said[0]["content"]
    if name not in ("nasty/json-200", "openai/gpt-4o-refusal"):  # what they say is no `content` of a delta
        assert _said(content, "text") == (expect["text"] or ""), name
    else:
        assert _said(content, "text"), name
    assert _said(content, "reasoning") == (expect["reasoning"] or ""), name
    calls = [(b["id"], b["name"], b["arguments"]) for b in content if b["type"] == "tool-call"]
    wanted = [(c["id"] or "call-0", c["name"], c["arguments"]) for c in expect["toolCalls"]]
    assert sorted(calls) == ([] if expect["finish"] == "length" else sorted(wanted)), name
    if expect.get("usage"):
        usage = said[0]["usage"]
        read = usage["inputTokens"] + usage.get("cacheReadTokens", 0) + usage.get("cacheWriteTokens", 0)
        assert read == expect["usage"]["prompt_tokens"], name
        assert usage["outputTokens"] == expect["usage"]["completion_tokens"], name
    if not calls:
        assert (lines[-1]["answer"] or "") == _said(content, "text"), name
    else:
        results = [line for line in lines if line["type"] == "tool/result"]
        assert len(results) >= len(calls), name


def _check_history(name: str, request: Any) -> None:
    """What the strict server does not look at."""
    for message in request.messages:
        assert isinstance(message["content"], str), name
        for call in message.get("tool_calls", []):
            assert call["function"]["name"], name
            assert isinstance(json.loads(call["function"]["arguments"]), dict), (name, call)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_stream_then_the_next_turn(fixtures: Path, server: str, dsh: Dsh, batch: int) -> None:
    files = sorted((fixtures / "sse").glob("*/*.expect.json"))[batch::BATCHES]
    assert files
    with FakeProvider(strict=True) as strict:
        for file in files:
            name = f"{file.parent.name}/{file.name.removesuffix('.expect.json')}"
            expect = json.loads(file.read_text("utf-8"))
            # their own way of being served is the point of the hand-made ones
            settings = "-" if file.parent.name == "nasty" else "size=211"
            done = _ask(dsh, f"{server}/{settings}/{name}", "--json")
            _check_errors(name, done)
            assert done.code == _code(name, expect), (name, done.errors)
            _check_message(name, expect, done)
            if file.parent.name not in _ODD_CALLS:
                continue
            strict.script(text("next"))
            session = _lines(done)[-1]["sessionId"]
            after = _ask(dsh, strict.base_url, "-r", session)
            assert (after.code, after.text) == (0, "next\n"), (name, after.errors)
            _check_history(name, strict.requests[-1])


def test_error_bodies_of_a_real_server(fixtures: Path, server: str, dsh: Dsh) -> None:
    codes = {
        "err-401-bad-key": 4,
        "err-401-no-key": 4,
        "err-404": 4,
        "err-503-loading": 5,
        "err-bad-tools": 5,
        "err-bad-type": 4,
        "err-malformed-json": 4,
        "overflow-stream": 6,
        "text-nonstream": 6,
        "reasoning-tool-nonstream": 6,
    }
    for name, code in codes.items():
        done = _ask(dsh, f"{server}/-/llama-server/{name}")
        _check_errors(name, done)
        assert done.code == code, (name, done.errors)
        if name.startswith(("err", "overflow")):
            told = json.loads((fixtures / "sse" / "llama-server" / f"{name}.body").read_text("utf-8"))
            assert " ".join(told["error"]["message"].split())[:200] in done.errors, name


def test_a_stream_with_another_status_is_an_error(server: str, dsh: Dsh) -> None:
    for name in ("deepseek/chat-text", "nasty/html-200", "nasty/control-characters"):
        done = _ask(dsh, f"{server}/status=500/{name}")
        _check_errors(name, done)
        assert (done.code, done.text) == (5, ""), name
        assert "HTTP 500" in done.errors, name
        assert all(len(line) < 400 for line in done.errors.splitlines()), done.errors


def test_one_delta_of_five_megabytes(server: str, dsh: Dsh) -> None:
    done = _ask(dsh, f"{server}/-/generated/big", "-q")
    assert (done.code, done.out.strip(b"x"), len(done.out)) == (0, b"\n", (5 << 20) + 1)
    assert done.seconds < 5


def test_a_slow_stream_is_shown_as_it_comes(server: str, dsh: Dsh) -> None:
    url = f"{server}/{urllib.parse.urlencode({'n': 12, 'delay': 250})}/generated/trickle"
    process = dsh.start("run", "--base-url", url, "-m", "x", "hi")
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    assert (first, process.poll()) == (b"0", None)  # the last delta is seconds away
    out, _ = process.communicate(timeout=30)
    assert (first + out).split() == [str(n).encode() for n in range(12)]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("Service is starting\n", "text/plain"),
        ('[{"error": {"message": "in a list"}}]', "application/json"),
        ('"nope"', "application/json"),
    ],
)
def test_a_body_that_is_no_event_stream_is_told_by_its_type(dsh: Dsh, body: str, kind: str) -> None:
    with FakeProvider(raw(body, content_type=kind)) as fake:
        done = _ask(dsh, fake.base_url)
    assert done.code == 5
    assert f"answered with {kind} instead of an event stream (MALFORMED_RESPONSE)" in done.errors


def test_calls_that_a_server_would_refuse_in_the_history(dsh: Dsh) -> None:
    odd = calls(("", "{}", "a"), ("read", "[1]", "b"), ("read", "7", "c"), ("read", '{"path":', "d"))
    with FakeProvider(odd, text("ok"), strict=True) as fake:
        done = _ask(dsh, fake.base_url)
    assert (done.code, done.text) == (0, "ok\n")
    _check_history("odd calls", fake.requests[-1])
