"""A scriptable fake provider: a real HTTP/1.1 server on loopback that speaks chat completions.

    from tests.provider import FakeProvider, text, tool_call, calls, status, raw, hang, cut

    with FakeProvider(tool_call("bash", {"command": "ls"}), text("done")) as fake:
        ...                              # the program under test talks to fake.base_url
        fake.requests[0].messages        # what it sent; also `.body`, `.headers` (lower case), `.raw`
        fake.script(text("more"))        # add replies while it runs

Each `POST .../chat/completions` takes the next reply. When the script is used up the answer is `text("ok")`
(`then="ok"`) or the last reply again (`then="repeat"`). An item of the script may also be a function that
gets the recorded request and returns a reply; `echo` is one. `GET .../models` lists `models` (None: 404).
`tls=` a server-side SSLContext makes it https.
`fake.requests` holds chat requests only, everything else is in `fake.other`; `fake.connections` counts TCP
connections.

`strict=True` answers 400 to a history that a real provider would refuse; `strict={"unicode"}` picks rules:

    tool-results     each `tool_calls[].id` has its own `role: tool` message straight after, and no others do
    reasoning        an assistant message with a call that was served with reasoning carries just that
    unicode          the body is UTF-8 JSON without lone surrogates
    null-content     no assistant message has `content: null` or lacks it
    foreign-reasoning  (not part of True) no `reasoning_content` that this server did not make

In a shell: python tests/provider.py SCRIPT.json [--log FILE] [--strict] [--then repeat] [--models a,b]
[--port N] prints its base URL as the first line and serves until it is terminated or its parent process is
gone. SCRIPT is a JSON list; an item is `{BUILDER: argument, ...keywords}`:

    {"text": "hello", "reasoning": "hm", "pieces": 20, "delay": 0.01}      {"echo": true}      {"hang": true}
    {"tool_call": "bash", "arguments": {"command": "ls"}, "id": "c1"}   {"calls": [["bash", {"timeout": 1}]]}
    {"status": 500, "body": {"error": {"message": "boom"}}, "headers": {"retry-after": "1"}}
    {"raw": "data: {...}\\n\\ndata: [DONE]\\n\\n"}    {"cut": {"text": "half"}}    {"file": "recorded.sse"}

`--log` appends one JSON line per request: path, headers, body.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import select
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STRICT = frozenset({"tool-results", "reasoning", "unicode", "null-content"})
DEFAULT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(frozen=True)
class Reply:
    """Status, headers and body. A step is bytes (one write), a float (seconds of waiting), `"hang"` (silence
    until the client or the server goes away), `"reset"` (the socket is closed inside a chunk) or `"close"` (a
    clean end)."""

    steps: tuple[bytes | float | str, ...]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream; charset=utf-8"),)

    @property
    def body(self) -> bytes:
        return b"".join(s for s in self.steps if isinstance(s, bytes))


@dataclass(eq=False)
class Recorded:
    """A request as it arrived; `body` is the parsed JSON or None. `gone` is set if the client left early."""

    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    at: float = field(default_factory=time.monotonic)
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def last_text(self) -> str:
        """The content of the last user message."""
        said = [m["content"] for m in self.messages if m.get("role") == "user"]
        return str(said[-1]) if said else ""


Item = Reply | Callable[[Recorded], Reply]


# --- reply builders


def event(value: Any) -> bytes:
    """One SSE event; a str goes out as it is, anything else as JSON."""
    return b"data: " + (value.encode() if isinstance(value, str) else json.dumps(value).encode()) + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    """One event with a delta: `delta(content="hi")`, `delta(reasoning_content="hm")`, `delta("stop")`."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def _cut_text(content: str, pieces: int) -> list[str]:
    if pieces <= 1 or not content:
        return [content] if content else []
    size = max(1, -(-len(content) // pieces))
    return [content[i : i + size] for i in range(0, len(content), size)]


def _stream(
    body: Iterable[bytes],
    finish: str,
    usage: dict[str, Any] | None,
    delay: float,
    reasoning: str,
    pieces: int,
) -> Reply:
    writes = [delta(role="assistant", content="")]
    writes += [delta(reasoning_content=part) for part in _cut_text(reasoning, pieces)]
    writes += body
    writes.append(delta(finish))
    if usage is not None:
        writes.append(event({"choices": [], "usage": usage}))
    writes.append(event("[DONE]"))
    steps: list[bytes | float | str] = []
    for write in writes:
        if delay and steps:
            steps.append(delay)
        steps.append(write)
    return Reply(tuple(steps) if delay else (b"".join(writes),))


def text(
    content: str,
    *,
    reasoning: str = "",
    finish: str = "stop",
    usage: dict[str, Any] | None = DEFAULT_USAGE,
    pieces: int = 1,
    delay: float = 0.0,
) -> Reply:
    """A text answer in `pieces` deltas, `delay` seconds apart."""
    return _stream(
        [delta(content=part) for part in _cut_text(content, pieces)], finish, usage, delay, reasoning, pieces
    )


def calls(
    *wanted: Sequence[Any],
    text: str = "",
    reasoning: str = "",
    finish: str = "tool_calls",
    usage: dict[str, Any] | None = DEFAULT_USAGE,
    pieces: int = 1,
    delay: float = 0.0,
) -> Reply:
    """An answer with several tool calls, each `(name, arguments)` or `(name, arguments, id)`; arguments given
    as a str go out as they are. Ids default to call_1, call_2, ..."""
    body = [delta(content=part) for part in _cut_text(text, pieces)]
    for index, (name, arguments, *rest) in enumerate(wanted):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = rest[0] if rest else f"call_{index + 1}"
        first, *more = _cut_text(written, pieces) or [""]
        head = {"id": call_id, "type": "function", "function": {"name": name, "arguments": first}}
        body.append(delta(tool_calls=[{"index": index, **head}]))
        body += [delta(tool_calls=[{"index": index, "function": {"arguments": m}}]) for m in more]
    return _stream(body, finish, usage, delay, reasoning, pieces)


def tool_call(name: str, arguments: Any, id: str = "call_1", **keywords: Any) -> Reply:
    """An answer with one tool call; keywords as for `calls`."""
    return calls((name, arguments, id), **keywords)


def status(code: int, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
    """Any HTTP answer; a body that is not str or bytes goes out as JSON."""
    kind = "application/json"
    if body is None:
        body = {"error": {"message": f"status {code}"}}
    if isinstance(body, str):
        body, kind = body.encode(), "text/plain"
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    given = {k.lower(): v for k, v in (headers or {}).items()}
    return Reply((body,) if body else (), code, tuple({"content-type": kind, **given}.items()))


def raw(
    *steps: bytes | str | float,
    content_type: str = "text/event-stream",
    headers: dict[str, str] | None = None,
) -> Reply:
    """A 200 with this body; several parts are several writes, numbers are waits in seconds."""
    parts = tuple(s.encode() if isinstance(s, str) else s for s in steps)
    return Reply(parts, 200, (("content-type", content_type), *(headers or {}).items()))


def hang(reply: Reply | None = None) -> Reply:
    """The start of `reply` (all before its finish event; default: nothing but headers), then silence with the
    socket open."""
    return Reply((*(_before_finish(reply) if reply else ()), "hang"))


def cut(reply: Reply | None = None, *, reset: bool = False) -> Reply:
    """`reply` without its finish, usage and [DONE] events: a clean end of body, or with `reset` a socket
    closed inside a chunk."""
    return Reply((*(_before_finish(reply) if reply else ()), "reset" if reset else "close"))


def _before_finish(reply: Reply) -> tuple[bytes | float | str, ...]:
    kept: list[bytes] = []
    for piece in reply.body.split(b"\n\n"):
        if b'"finish_reason": "' in piece or b"[DONE]" in piece:
            break
        if piece:
            kept.append(piece + b"\n\n")
    return tuple(kept)


def echo(request: Recorded) -> Reply:
    """Answers with the last user message; put the function itself into the script."""
    return text(request.last_text)


# --- the rules of a strict provider


class _Memory:
    """Reasoning served with each call id, so that it can be asked back (P5)."""

    def __init__(self) -> None:
        self.by_call: dict[str, str] = {}
        self.all: set[str] = set()

    def note(self, reply: Reply) -> None:
        said, ids = "", []
        for line in reply.body.splitlines():
            with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, AttributeError):
                part = json.loads(line.removeprefix(b"data:"))["choices"][0]["delta"]
                said += part.get("reasoning_content") or part.get("reasoning") or ""
                ids += [c["id"] for c in part.get("tool_calls") or [] if c.get("id")]
        self.by_call.update(dict.fromkeys(ids, said))
        if said:
            self.all.add(said)


def violation(request: Recorded, rules: Iterable[str], memory: _Memory) -> str | None:
    """The first broken rule in words, or None."""
    active = frozenset(rules)
    if "unicode" in active:
        try:
            json.dumps(json.loads(request.raw.decode()), ensure_ascii=False).encode()
        except ValueError as error:
            return f"body is not clean UTF-8 JSON: {type(error).__name__}"
    if not isinstance(request.body, dict) or not isinstance(request.body.get("messages"), list):
        return "messages is missing"
    messages = request.messages
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        wanted = [c.get("id") for c in message.get("tool_calls") or []]
        said = message.get("reasoning_content")
        if "null-content" in active and not isinstance(message.get("content"), str):
            return f"messages[{at}].content must be a string"
        if "reasoning" in active and wanted and (made := memory.by_call.get(wanted[0] or "")) and said != made:
            return "The `reasoning_content` in the thinking mode must be passed back to the API."
        if "foreign-reasoning" in active and said and said not in memory.all:
            return f"messages[{at}].reasoning_content was not made here"
        if "tool-results" in active:
            if not all(wanted) or len(set(wanted)) != len(wanted):
                return f"messages[{at}] has a missing or repeated tool_calls id"
            after = messages[at + 1 : at + 1 + len(wanted)]
            got = [m.get("tool_call_id") for m in after if m.get("role") == "tool"]
            if sorted(got, key=str) != sorted(wanted, key=str):
                return f"messages[{at}]: tool_calls {wanted} are followed by results {got}"
    if "tool-results" in active and (orphan := _orphan(messages)) is not None:
        return f"messages[{orphan}]: a tool message answers no call"
    return None


def _orphan(messages: list[dict[str, Any]]) -> int | None:
    open_ids: set[Any] = set()
    for at, message in enumerate(messages):
        if message.get("role") == "assistant":
            open_ids = {c.get("id") for c in message.get("tool_calls") or []}
        elif message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                return at
            open_ids.discard(message.get("tool_call_id"))
    return None


# --- the server


class FakeProvider:
    """A context manager; see the module's docstring."""

    def __init__(
        self,
        *replies: Item,
        strict: bool | Iterable[str] = False,
        then: str = "ok",
        models: Sequence[str] | None = ("fake-model",),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Recorded] = []
        self.other: list[Recorded] = []
        self.models = models
        self.connections = 0
        self.on_request: Callable[[Recorded], None] = lambda _: None
        self._rules = STRICT if strict is True else frozenset(strict or ())
        self._then = then
        self._script: list[Item] = list(replies)
        self._last: Item = text("ok")
        self._memory = _Memory()
        self._lock = threading.Condition()
        self._stop = threading.Event()
        self._sockets: set[socket.socket] = set()
        self.tls = tls
        self._server = _Server(("127.0.0.1", port), _Handler, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def base_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def left(self) -> int:
        """Replies of the script that nobody has taken yet."""
        return len(self._script)

    def script(self, *replies: Item) -> None:
        with self._lock:
            self._script.extend(replies)

    def wait_for(self, count: int, timeout: float = 10) -> None:
        """Block until `count` chat requests have arrived."""
        with self._lock:
            if not self._lock.wait_for(lambda: len(self.requests) >= count, timeout):
                raise TimeoutError(f"{len(self.requests)} of {count} requests arrived")

    def __enter__(self) -> FakeProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        with self._lock:
            open_sockets = list(self._sockets)
        for connection in open_sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()

    def _take(self, request: Recorded) -> Reply:
        with self._lock:
            self.requests.append(request)
            self._lock.notify_all()
            problem = violation(request, self._rules, self._memory) if self._rules else None
            if problem is None:
                if self._script:
                    self._last = self._script.pop(0)
                elif self._then != "repeat":
                    self._last = text("ok")
            item = self._last
        self.on_request(request)
        if problem is not None:
            return status(400, {"error": {"message": problem, "type": "invalid_request_error"}})
        reply = item if isinstance(item, Reply) else item(request)
        with self._lock:
            self._memory.note(reply)
        return reply


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[_Handler], fake: FakeProvider) -> None:
        self.fake = fake
        super().__init__(address, handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer would look the host name up
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.fake.tls is not None:  # the handshake comes with the first read, in the connection's own thread
            connection = self.fake.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        with self.server.fake._lock:
            self.server.fake.connections += 1
            self.server.fake._sockets.add(self.connection)

    def finish(self) -> None:
        with self.server.fake._lock:
            self.server.fake._sockets.discard(self.connection)
        super().finish()

    def _record(self) -> Recorded:
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionAbortedError("the sender was killed before the whole request had gone out")
        parsed: Any = None
        with contextlib.suppress(ValueError):
            parsed = json.loads(body)
        return Recorded(self.path, {k.lower(): v for k, v in self.headers.items()}, body, parsed)

    def do_GET(self) -> None:
        fake, request = self.server.fake, self._record()
        fake.other.append(request)
        if self.path.endswith("/models") and fake.models is not None:
            listed = [{"id": name, "object": "model"} for name in fake.models]
            self._send(request, status(200, {"object": "list", "data": listed}))
        else:
            self._send(request, status(404))

    def do_POST(self) -> None:
        fake, request = self.server.fake, self._record()
        if self.path.partition("?")[0].endswith("/chat/completions"):
            self._send(request, fake._take(request))
        else:
            fake.other.append(request)
            self._send(request, status(404))

    def _send(self, request: Recorded, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for step in reply.steps:
                if isinstance(step, bytes):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(step), step))
                elif isinstance(step, float | int):
                    if self._wait(request, step):
                        return
                elif step == "hang":
                    self._wait(request, None)
                    return
                elif step == "reset":
                    self.wfile.write(b'ff\r\ndata: {"cho')
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            request.gone.set()
            self.close_connection = True

    def _wait(self, request: Recorded, seconds: float | None) -> bool:
        """Wait, and notice a client that closes meanwhile; True when there is nobody left to write to."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self.server.fake._stop.is_set():
            left = 0.05 if end is None else min(0.05, end - time.monotonic())
            if left <= 0:
                return False
            ready, _, _ = select.select([self.connection], [], [], left)
            if ready and self.server.fake.tls is None and not self.connection.recv(1, socket.MSG_PEEK):
                request.gone.set()
                break
            if ready:
                time.sleep(left)
        self.close_connection = True
        return True


# --- for shells


def from_json(item: dict[str, Any], base: Path = Path()) -> Item:
    """A script item written as JSON; see the module's docstring."""
    rest = dict(item)
    for name in _BUILDERS:
        if name in rest:
            return _BUILDERS[name](rest.pop(name), rest, base)
    raise ValueError(f"no builder in {item!r}; known: {', '.join(_BUILDERS)}")


def _inner(given: Any, base: Path) -> Reply | None:
    made = from_json(given, base) if isinstance(given, dict) else None
    return made if isinstance(made, Reply) else None


_BUILDERS: dict[str, Callable[[Any, dict[str, Any], Path], Item]] = {
    "tool_call": lambda v, k, _: tool_call(v, k.pop("arguments", {}), **k),
    "calls": lambda v, k, _: calls(*v, **k),
    "text": lambda v, k, _: text(v, **k),
    "status": lambda v, k, _: status(v, **k),
    "raw": lambda v, k, _: raw(v, **k),
    "file": lambda v, k, base: raw((base / v).read_bytes(), **k),
    "hang": lambda v, k, base: hang(_inner(v, base)),
    "cut": lambda v, k, base: cut(_inner(v, base), **k),
    "echo": lambda v, k, _: echo,
}


def _script_of(path: Path) -> Iterator[Item]:
    for item in json.loads(path.read_text("utf-8")):
        yield from_json(item, path.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fake chat-completions provider on loopback.")
    parser.add_argument("script", type=Path, nargs="?")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--then", choices=["ok", "repeat"], default="ok")
    parser.add_argument("--models", default="fake-model")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    fake = FakeProvider(
        *(_script_of(given.script) if given.script else ()),
        strict=given.strict,
        then=given.then,
        models=given.models.split(","),
        port=given.port,
    )
    lock = threading.Lock()

    def log(request: Recorded) -> None:
        line = {"path": request.path, "headers": request.headers, "body": request.body}
        with lock, given.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    if given.log:
        fake.on_request = log
    with fake, contextlib.suppress(KeyboardInterrupt):
        print(fake.base_url, flush=True)
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
