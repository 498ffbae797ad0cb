"""The dsh of another machine as a place of `sync`, and its side of the talk: `dsh sync serve` behind a shell.

Lines of JSON both ways; a log follows its line as pieces, each after a line `{"bytes": N}`, the last of them empty. The
server's first line says which protocol it speaks; what a login script prints before it is passed over.

    {"op":"list"}                              → offers, {"end":true}
    {"op":"want"}, offers, {"end":true}        → offers, {"end":true}
    {"op":"get", offer}                        → {"ok":true}, pieces
    {"op":"put", "dry_run":false, offer}       → {"ok":true}; pieces → {"outcome":{...}}
    an answer may be {"error":"…","code":"…"} instead
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, BinaryIO

from dsh.core.errors import DshError, StoreError
from dsh.core.lossless import dumps, loads
from dsh.session.sync.here import Here
from dsh.session.sync.model import KINDS, Broken, Fetch, Offer, Outcome

PROTOCOL = 1
_LINE = 1 << 20  # bytes of the longest line
_PIECE = 1 << 18
_NOISE = 1000  # lines before the greeting


class _Wire:
    """Lines and pieces over two streams."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._in = incoming
        self._out = outgoing

    def say(self, message: Any) -> None:
        self._out.write(dumps(message).encode() + b"\n")
        self._out.flush()

    def line(self) -> bytes:
        try:
            line = self._in.readline(_LINE)
        except OSError as error:
            raise Broken(f"the connection broke: {error.strerror}") from error
        if not line.endswith(b"\n"):
            raise Broken("the connection ended")
        return line

    def request(self) -> dict[str, Any] | None:
        """The next message; None if the other side has closed its end. SYNC_FAILED for what is none."""
        line = self._in.readline(_LINE)
        return self._message(line) if line else None

    def hear(self) -> dict[str, Any]:
        """The answer. A refusal of the other side is raised with its code, SYNC_FAILED for what is no message."""
        message = self._message(self.line())
        if "error" in message:
            code = str(message.get("code"))
            kind = StoreError if code.startswith("DB_") else DshError
            raise kind(f"the other side says: {message['error']}", code=code)
        return message

    @staticmethod
    def _message(line: bytes) -> dict[str, Any]:
        try:
            message = loads(line.decode())
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Broken("what came over the connection is no message")
        return message

    def say_offers(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self._out.write(dumps(offer._asdict()).encode() + b"\n")
        self.say({"end": True})

    def hear_offers(self) -> Iterator[Offer]:
        while "end" not in (message := self.hear()):
            yield offer_of(message)

    def send(self, log: BinaryIO) -> None:
        while piece := log.read(_PIECE):
            self._out.write(dumps({"bytes": len(piece)}).encode() + b"\n")
            self._out.write(piece)
        self.say({"bytes": 0})

    @contextmanager
    def received(self) -> Iterator[BinaryIO]:
        """A log that comes in pieces, in a file: the database is not held up by a slow line."""
        import tempfile

        with tempfile.TemporaryFile() as file:
            while size := self.hear().get("bytes"):
                if type(size) is not int or not 0 < size <= _PIECE:
                    raise Broken("what came over the connection is no piece of a log")
                piece = self._in.read(size)
                if len(piece) != size:
                    raise Broken("the connection ended")
                file.write(piece)
            file.seek(0)
            yield file


def offer_of(message: dict[str, Any]) -> Offer:
    """SYNC_FAILED for what is no offer."""
    found = [message.get(field) for field in Offer._fields]
    key, length, digest, name, parent = found
    texts = [key, digest, name, *([] if parent is None else [parent])]
    if type(length) is not int or length < 1 or not all(isinstance(each, str) and each for each in texts):
        raise Broken("what came over the connection is no session")
    return Offer(key, length, digest, name, parent)  # type: ignore[arg-type]


def _outcome_of(told: Any) -> Outcome:
    """SYNC_FAILED for what is no outcome."""
    if isinstance(told, dict) and set(told) == set(Outcome._fields) and told["kind"] in KINDS:
        texts = [told["id"], *(told[field] for field in ("beside", "reason") if told[field] is not None)]
        if type(told["events"]) is int and all(isinstance(text, str) for text in texts):
            return Outcome(**told)
    raise Broken("what came over the connection is no outcome")


class Remote:
    """What `command` serves, for one `ssh HOST dsh sync serve`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = " ".join(command)
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise Broken(f"{command[0]} cannot be run: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._wire = _Wire(self._process.stdout, self._process.stdin)
        try:
            self._greet()
        except BaseException:
            self.end()
            raise

    def _greet(self) -> None:
        try:
            for _ in range(_NOISE):
                line = self._wire.line()
                if line.startswith(b'{"dsh-sync":'):
                    spoken = loads(line.decode()).get("dsh-sync")
                    if spoken != PROTOCOL:
                        raise Broken(f"the other dsh speaks version {spoken} of the protocol, this one {PROTOCOL}")
                    return
                if line.startswith(b'{"error":'):
                    refusal = loads(line.decode())
                    raise Broken(f"the other dsh says: {refusal['error']}")
        except (ValueError, KeyError):
            pass
        except Broken as error:
            if error.message != "the connection ended":
                raise
        raise Broken(f"no dsh answers: {self._name}", hint="is it installed there? --dsh says what it is called")

    def offers(self) -> list[Offer]:
        self._say({"op": "list"})
        return list(self._wire.hear_offers())

    def described(self, offer: Offer) -> Offer:
        return offer

    def wanted(self, offers: Iterable[Offer]) -> list[Offer]:
        asked = list(offers)
        self._say({"op": "want"})
        try:
            self._wire.say_offers(asked)
        except OSError as error:
            raise self._reason(error) from error
        heard = set(self._wire.hear_offers())
        return [offer for offer in asked if offer in heard]

    @contextmanager
    def fetch(self, offer: Offer) -> Iterator[BinaryIO]:
        self._say({"op": "get", **offer._asdict()})
        self._wire.hear()
        with self._wire.received() as file:
            yield file

    def put(self, offer: Offer, fetch: Fetch, *, dry_run: bool) -> Outcome:
        if dry_run:
            return Outcome("sent", str(offer.id), offer.length)
        with fetch() as log:
            self._say({"op": "put", **offer._asdict()})
            self._wire.hear()
            try:
                self._wire.send(log)
            except OSError as error:
                raise self._reason(error) from error
        return _outcome_of(self._wire.hear().get("outcome"))

    def _say(self, message: Any) -> None:
        try:
            self._wire.say(message)
        except OSError as error:
            raise self._reason(error) from error

    def _reason(self, error: OSError) -> DshError:
        """Why nothing can be sent any more: what the other side said last, if it did."""
        try:
            self._wire.hear()
        except Broken:
            pass
        except DshError as told:
            return told
        return Broken(f"the connection broke: {error.strerror}")

    def close(self) -> None:
        """Let the other side finish: it indexes what it got. SYNC_FAILED if it fails at that."""
        self._say({"op": "close"})
        self._wire.hear()

    def end(self) -> None:
        """Close the connection, whatever its state."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(here: Here, incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer another dsh until it closes its end. Trouble with the database ends it, what is wrong with one log does
    not."""
    wire = _Wire(incoming, outgoing)
    wire.say({"dsh-sync": PROTOCOL})
    while (request := wire.request()) is not None:
        op = request.get("op")
        try:
            if op == "list":
                wire.say_offers(list(here.offers()))
            elif op == "want":
                wire.say_offers(here.wanted(list(wire.hear_offers())))
            elif op == "get":
                with here.fetch(offer_of(request)) as log:
                    wire.say({"ok": True})
                    wire.send(log)
            elif op == "put":
                offer = offer_of(request)
                wire.say({"ok": True})
                with wire.received() as file:
                    outcome = here.put(offer, lambda: _given(file), dry_run=False)
                wire.say({"outcome": outcome._asdict()})
            elif op == "close":
                here.close()
                wire.say({"ok": True})
            else:
                raise Broken(f"there is no operation {op!r}")
        except (Broken, BrokenPipeError):
            raise
        except DshError as error:
            wire.say({"error": error.message, "code": error.code})
            if isinstance(error, StoreError):
                raise


@contextmanager
def _given(file: BinaryIO) -> Iterator[BinaryIO]:
    yield file
