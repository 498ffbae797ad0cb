"""A model server on loopback for the benchmarks: chat completions and the Responses API, one thread a connection.

Every answer is made beforehand and sent in pieces, as a model's tokens come. With `steps` left, an answer is a call of
the shell tool that the request offers, with `true` as its command; otherwise it is twenty pieces of text. The server
runs in a thread of the measuring process, which only waits meanwhile.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

PIECES = 20
_SHELLS = ("bash", "exec_command", "shell_command", "shell", "local_shell")


class Server:
    """`arrivals` are the times (monotonic) at which requests for an answer were complete, `bodies` what they were,
    since `reset`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self.arrivals: list[float] = []
        self.bodies: list[bytes] = []
        self.steps = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self, steps: int = 0) -> None:
        self.arrivals, self.bodies = [], []
        self.steps = steps

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (request := _receive(connection)) is not None:
                    self._answer(connection, *request)
            except OSError:
                return

    def _answer(self, connection: socket.socket, line: str, body: bytes) -> None:
        verb, path = line.split()[:2]
        if verb != "POST":
            listed = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(listed)}\r\n\r\n"
            connection.sendall(head.encode() + listed)
            return
        self.arrivals.append(time.monotonic())
        self.bodies.append(body)
        request = json.loads(body)
        call = None
        if self.steps > 0:
            self.steps -= 1
            call = _shell_call(request)
        events = _responses(call) if path.endswith("/responses") else _chat(call)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        connection.sendall(b"0\r\n\r\n")


def _receive(connection: socket.socket) -> tuple[str, bytes] | None:
    """The request line and the body of one request, None at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if fields.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in fields.get("transfer-encoding", ""):
        return lines[0], _chunked(connection, body)
    while len(body) < int(fields.get("content-length", 0)):
        body += connection.recv(1 << 20)
    return lines[0], body


def _chunked(connection: socket.socket, data: bytes) -> bytes:
    body = b""
    while True:
        while b"\r\n" not in data:
            data += connection.recv(65536)
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        while len(data) < length + 2:
            data += connection.recv(65536)
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            return body


def _shell_call(request: dict[str, Any]) -> tuple[str, str]:
    """Name and arguments of a call of the shell tool that was offered, running `true`."""
    offered = {}
    for tool in request.get("tools") or ():
        tool = tool.get("function") or tool
        offered[tool.get("name") or tool.get("type")] = tool.get("parameters") or {}
    name = next(name for name in _SHELLS if name in offered)
    properties = offered[name].get("properties") or {}
    required = offered[name].get("required") or list(properties)[:1]
    arguments: dict[str, Any] = {}
    for key in required:
        text = "true" if key in ("command", "cmd") else "does nothing"
        arguments[key] = [text] if (properties.get(key) or {}).get("type") == "array" else text
    return name, json.dumps(arguments)


def _event(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _chat(call: tuple[str, str] | None) -> Iterator[bytes]:
    common = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({**common, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if call is None:
        for number in range(PIECES):
            yield chunk({"content": f"word{number} "})
        yield chunk({}, "stop")
    else:
        function = {"name": call[0], "arguments": call[1]}
        made = {"index": 0, "id": f"call_{time.monotonic_ns()}", "type": "function", "function": function}
        yield chunk({"tool_calls": [made]})
        yield chunk({}, "tool_calls")
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    yield _event({**common, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _responses(call: tuple[str, str] | None) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)

    yield event("response.created", response={"id": "r1"})
    if call is None:
        item: dict[str, Any] = {"type": "message", "role": "assistant", "id": "m1", "content": []}
        yield event("response.output_item.added", output_index=0, item=item)
        words = [f"word{number} " for number in range(PIECES)]
        for word in words:
            yield event("response.output_text.delta", item_id="m1", output_index=0, content_index=0, delta=word)
        item = {**item, "content": [{"type": "output_text", "text": "".join(words), "annotations": []}]}
    else:
        mark = f"call_{time.monotonic_ns()}"
        item = {"type": "function_call", "id": f"f{mark}", "call_id": mark, "name": call[0], "arguments": call[1]}
    yield event("response.output_item.done", output_index=0, item=item)
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 120,
    }
    yield event("response.completed", response={"id": "r1", "usage": usage})
