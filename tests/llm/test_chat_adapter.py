"""The adapter over real sockets: headers, failures, the watchdog, cancellation, connections."""

from __future__ import annotations

import gzip
import json
import shutil
import ssl
import subprocess
import sys
import urllib.parse
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio

from dsh.llm.adapters.chat import USER_AGENT
from dsh.llm.adapters.chat_request import DIALECTS
from dsh.llm.failure import LlmError
from tests.llm.helpers import RECORDED, SSE, Answer, adapter, collect, expectation, parse, request
from tests.provider import FakeProvider, Reply, cut, event, hang, raw, status, text, tool_call

pytestmark = pytest.mark.slow  # real time limits of real connections

KEY = "sk-very-secret"


async def ask(base_url: str, **keywords: Any) -> Answer:
    async with adapter(base_url, **keywords) as made:
        return await collect(made.stream(request()))


@pytest.mark.rule("LS-58")
async def test_what_is_sent() -> None:
    with FakeProvider(text("hello")) as fake:
        headers = {"User-Agent": "mine", "X-Team": "blue", "Accept": "x"}
        answer = await ask(fake.base_url, key=KEY, headers=headers)
        sent = fake.requests[0]
    assert answer.text == "hello"
    assert answer.assembler.usage == {"inputTokens": 10, "outputTokens": 5}
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["user-agent"] == USER_AGENT
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["accept"] == "text/event-stream"
    assert sent.headers["accept-encoding"] == "identity"
    assert sent.headers["x-team"] == "blue"
    assert sent.body["stream"] is True


@pytest.mark.rule("LS-57", "LS-58")
async def test_nothing_per_request_in_the_headers() -> None:
    with FakeProvider(then="repeat") as fake:
        async with adapter(fake.base_url, dialect=DIALECTS["deepseek"]) as made:
            await collect(made.stream(request(session_id="session-abc")))
            await collect(made.stream(request(session_id="session-abc", purpose="compaction")))
        plain, compaction = fake.requests
    assert "authorization" not in plain.headers
    for sent in (plain, compaction):
        assert not any("session-abc" in v for v in sent.headers.values())
        assert b"session-abc" not in sent.raw
        assert sent.headers["user-agent"] == USER_AGENT
    assert compaction.headers["x-deepseek-harness-compact"] == "1"
    assert "x-deepseek-harness-compact" not in plain.headers


@pytest.mark.rule("LS-6", "LS-70", "LS-71", "LS-74")
async def test_a_refusal_is_one_request_and_one_error() -> None:
    headers = {"retry-after": "2", "x-request-id": "r-1"}
    with FakeProvider(status(429, {"error": {"message": "slow"}}, headers), then="repeat") as fake:
        answer = await ask(fake.base_url)
        assert len(fake.requests) == 1
    assert answer.error is not None
    assert answer.error.failure == {
        "message": "slow",
        "code": "RATE_LIMIT",
        "status": 429,
        "providerRetryAfterMs": 2000,
        "requestId": "r-1",
    }


@pytest.mark.rule("LS-74")
async def test_the_other_request_id() -> None:
    with FakeProvider(status(500, headers={"x-deepseek-request-id": "d-1"})) as fake:
        answer = await ask(fake.base_url)
    assert answer.error is not None
    assert answer.error.failure["requestId"] == "d-1"


@pytest.mark.rule("LS-59")
async def test_redirects_are_not_followed() -> None:
    with FakeProvider(status(307, headers={"location": "/v1/elsewhere"})) as fake:
        assert (await ask(fake.base_url)).code == "HTTP_307"
        assert fake.other == []


@pytest.mark.rule("LS-75")
async def test_the_key_is_in_no_message() -> None:
    with FakeProvider(
        status(401, {"error": {"message": f"Incorrect API key: {KEY}."}}),
        raw(event({"error": {"message": f"key {KEY} expired"}})),
        status(500, f"dump: authorization=Bearer {KEY}"),
    ) as fake:
        for code in ("AUTH", "SERVER", "SERVER"):
            answer = await ask(fake.base_url, key=KEY)
            assert answer.code == code
            assert KEY not in str(answer.error)
            assert KEY not in json.dumps(answer.error and answer.error.failure)


@pytest.mark.rule("LS-75")
async def test_nobody_there() -> None:
    answer = await ask("http://user:pw@127.0.0.1:9/v1")
    assert answer.code == "TRANSPORT"
    assert answer.error is not None
    assert answer.error.message.startswith("Prov request to http://127.0.0.1:9/v1 failed")
    assert answer.error.__cause__ is not None
    answer = await ask("http://no-such-host.invalid/v1")
    assert answer.code == "TRANSPORT"


@pytest.mark.rule("LS-75")
async def test_a_connection_that_breaks() -> None:
    with FakeProvider(cut(text("half"), reset=True), Reply(("close",)), Reply(("reset",))) as fake:
        answer = await ask(fake.base_url)
        assert (answer.code, answer.text) == ("TRANSPORT", "half")
        assert answer.error is not None
        assert answer.error.message.startswith(f"Prov stream from {fake.base_url} failed")
        assert (await ask(fake.base_url)).code == "EMPTY_RESPONSE"
        assert (await ask(fake.base_url)).code == "TRANSPORT"


@pytest.mark.rule("LS-61")
async def test_a_stream_that_just_ends() -> None:  # case P11
    with FakeProvider(cut(tool_call("bash", {"command": "touch bad"}, reasoning="I will"))) as fake:
        answer = await ask(fake.base_url)
    assert answer.code == "STREAM_CLOSED"
    assert answer.reasoning == "I will"
    assert not any(c["type"] in ("block-end", "finish") for c in answer.chunks)


@pytest.mark.rule("LS-76", "LS-77")
@pytest.mark.parametrize("reply", [hang(), hang(text("a")), Reply((30.0,), headers=())])
async def test_silence_ends_in_a_timeout(reply: Reply) -> None:
    with FakeProvider(reply) as fake:
        with trio.fail_after(5):
            answer = await ask(fake.base_url, idle_timeout_ms=150)
        assert fake.requests[0].gone.wait(2)  # the connection was closed
    assert answer.code == "TIMEOUT"
    assert answer.error is not None
    assert "0.15 s" in answer.error.message


@pytest.mark.rule("LS-76")
async def test_comments_and_empty_deltas_do_not_reset_the_watchdog() -> None:
    idle: list[bytes | float] = [b": keep-alive\n\n", 0.06, event({"choices": [{"delta": {"content": ""}}]}), 0.06] * 20
    with FakeProvider(raw(event({"choices": [{"delta": {"content": "a"}}]}), *idle)) as fake:
        with trio.fail_after(5):
            answer = await ask(fake.base_url, idle_timeout_ms=300)
    assert (answer.code, answer.text) == ("TIMEOUT", "a")


@pytest.mark.rule("LS-76")
async def test_the_watchdog_restarts_with_every_chunk_and_rests_while_the_consumer_works() -> None:
    with FakeProvider(text("abcdef", pieces=6, delay=0.1)) as fake:
        async with adapter(fake.base_url, idle_timeout_ms=250) as made:
            got = ""
            async with aclosing(made.stream(request())) as chunks:
                async for chunk in chunks:
                    if chunk["type"] == "text-delta":
                        got += chunk["text"]
                        if got == "abc":
                            await trio.sleep(0.4)
    assert got == "abcdef"


@pytest.mark.rule("LS-77", "LS-42")
async def test_a_cancellation_passes_through_and_closes_the_connection() -> None:
    with FakeProvider(hang(text("a"))) as fake:
        async with adapter(fake.base_url) as made:
            got: list[str] = []
            with trio.move_on_after(0.3) as scope:
                async with aclosing(made.stream(request())) as chunks:
                    async for chunk in chunks:  # not extend(): what came before the cancellation is wanted
                        got.append(chunk["type"])  # noqa: PERF401
            assert scope.cancelled_caught
            assert got == ["block-start", "text-delta"]
            assert fake.requests[0].gone.wait(2)


@pytest.mark.rule("LS-77", "LS-42")
async def test_a_cancellation_between_chunks_closes_the_connection() -> None:
    with FakeProvider(hang(text("a"))) as fake:
        async with adapter(fake.base_url) as made:
            with trio.move_on_after(0.3) as scope:
                async with aclosing(made.stream(request())) as chunks:
                    await anext(chunks)
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            assert fake.requests[0].gone.wait(2)


@pytest.mark.rule("LS-42")
async def test_leaving_early_closes_the_connection_before_control_returns() -> None:
    with FakeProvider(hang(text("a"))) as fake:
        async with adapter(fake.base_url) as made:
            async with aclosing(made.stream(request())) as chunks:
                await anext(chunks)
            assert fake.requests[0].gone.wait(2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    wanted = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", str(file) + ".crt"]
    subprocess.run([openssl, "req", *wanted, *names], check=True, capture_output=True)
    file.write_text(file.read_text() + Path(str(file) + ".crt").read_text())
    return file


@pytest.fixture
def tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The server's side; the client trusts it through SSL_CERT_FILE."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_steps_share_a_tls_connection(tls: ssl.SSLContext) -> None:
    with FakeProvider(then="repeat", tls=tls) as fake:
        async with adapter(fake.base_url) as made:
            for _ in range(4):
                assert (await collect(made.stream(request()))).text == "ok"
        assert (len(fake.requests), fake.connections) == (4, 1)


async def test_plain_connections_are_not_used_again() -> None:
    """A server may close after any answer without having said so, as llama.cpp does after streams."""
    with FakeProvider(then="repeat") as fake:
        async with adapter(fake.base_url) as made:
            for _ in range(4):
                assert (await collect(made.stream(request()))).text == "ok"
        assert (len(fake.requests), fake.connections) == (4, 4)


async def test_a_server_that_lingers_after_done_does_not_hold_the_answer(tls: ssl.SSLContext) -> None:
    with FakeProvider(Reply((text("a").body, "hang")), tls=tls) as fake:
        with trio.fail_after(2):
            assert (await ask(fake.base_url)).text == "a"


@pytest.mark.rule("LS-75")
async def test_a_certificate_that_nobody_vouches_for(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with FakeProvider(tls=tls) as fake:
        answer = await ask(fake.base_url, key=KEY)
        assert fake.requests == []
    assert answer.code == "TRANSPORT"
    assert answer.error is not None
    assert "CERTIFICATE_VERIFY_FAILED" in answer.error.message


async def test_parallel_calls_of_one_adapter() -> None:
    with FakeProvider(*(lambda r: text(r.last_text, pieces=3, delay=0.02) for _ in range(5))) as fake:
        answers: dict[int, str] = {}
        async with adapter(fake.base_url) as made, trio.open_nursery() as nursery:

            async def one(number: int) -> None:
                said = {"role": "user", "content": [{"type": "text", "text": f"n{number}"}]}
                answers[number] = (await collect(made.stream(request(said)))).text  # type: ignore[arg-type]

            for number in range(5):
                nursery.start_soon(one, number)
    assert answers == {n: f"n{n}" for n in range(5)}


async def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(text("squeezed").body)
    with FakeProvider(raw(body[:20], body[20:], headers={"content-encoding": "gzip"})) as fake:
        assert (await ask(fake.base_url)).text == "squeezed"


async def test_a_stream_under_trio_needs_no_anyio() -> None:
    """The import trick of dsh.llm.http, in a process of its own: a stream works without what it hides."""
    program = """
import sys, trio
from dsh.llm.adapters.chat import ChatAdapter, Endpoint
from tests.llm.helpers import collect, request

async def main():
    made = ChatAdapter(Endpoint("p", sys.argv[1]))
    print((await collect(made.stream(request()))).text)
    await made.aclose()
    print(sorted({"anyio", "rich", "pygments", "httpx._main"} & sys.modules.keys()))
    import anyio, httpx._main  # importable again
    print(httpx.Client)

trio.run(main)
"""
    with FakeProvider(text("hello")) as fake:
        ran = await trio.run_process(
            [sys.executable, "-c", program, fake.base_url],
            cwd=Path(__file__).parents[2],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    lines = ran.stdout.decode().splitlines()
    assert lines[:2] == ["hello", "[]"], ran.stderr.decode()
    assert ran.returncode == 0


async def test_proxies_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeProvider(text("by proxy")) as proxy:
        host = urllib.parse.urlsplit(proxy.base_url).netloc
        monkeypatch.setenv("http_proxy", f"http://{host}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert (await ask("http://llm.invalid/v1")).text == "by proxy"
        assert proxy.requests[0].path == "http://llm.invalid/v1/chat/completions"


async def test_models_of_a_server() -> None:
    with FakeProvider(models=["b", "a", "b"]) as fake:
        async with adapter(fake.base_url, key=KEY) as made:
            assert [m["id"] for m in await made.list_models("p")] == ["b", "a"]
        assert fake.other[0].headers["authorization"] == f"Bearer {KEY}"
    with FakeProvider(models=None) as fake:
        async with adapter(fake.base_url) as made:
            with pytest.raises(LlmError) as caught:
                await made.list_models("p")
    assert caught.value.code == "HTTP_404"


@pytest.mark.parametrize("dialect", ["deepseek", "chat"])
@pytest.mark.rule("LS-21")
async def test_metadata_needs_no_request(dialect: str) -> None:
    async with adapter("http://127.0.0.1:9", dialect=DIALECTS[dialect], context_window=5000) as made:
        unknown = await made.resolve_model("p", "deepseek-v4-pro-2031")
        assert unknown["context"] == {"contextWindow": 5000}
        assert "defaultEffort" not in unknown["reasoning"]
        known = await made.resolve_model("p", "deepseek-v4-pro")
        assert known["context"] == {"contextWindow": 128_000 if dialect == "deepseek" else 5000}
        assert known["reasoning"].get("defaultEffort") == ("high" if dialect == "deepseek" else None)
        chat = await made.resolve_model("p", "deepseek-chat")
        assert "defaultEffort" not in chat["reasoning"]
    async with adapter("http://127.0.0.1:9", dialect=DIALECTS["deepseek"], thinking="disabled") as made:
        only = await made.resolve_model("p", "deepseek-v4-pro")
        assert only["reasoning"] == {"efforts": [{"id": "off", "name": "Off"}]}


# --- the recorded streams over the wire

NASTY = [n for n in RECORDED if n.startswith("nasty/")]


@pytest.fixture(scope="module")
def replay(fixtures: Path) -> Any:
    server = subprocess.Popen([sys.executable, SSE / "tools" / "replay.py"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.kill()
    server.stdout.close()
    server.wait()


@pytest.mark.parametrize("name", NASTY)
async def test_nasty_streams_over_the_wire(replay: str, name: str) -> None:
    wanted = expectation(name)
    answer = await ask(f"{replay}/{name}")
    if name == "nasty/reset-mid-chunk":
        assert answer.code == "TRANSPORT"
        assert answer.text == wanted["text"]
        return
    kind = wanted.get("serve", {}).get("contentType", "text/event-stream")
    whole = parse([(SSE / f"{name}.sse").read_bytes()], content_type=kind)
    assert (answer.text, answer.reasoning, answer.calls) == (whole.text, whole.reasoning, whole.calls)
    assert answer.code == whole.code


async def test_a_status_wins_over_an_event_stream_body(replay: str) -> None:
    answer = await ask(f"{replay}/deepseek/chat-text?status=500&x=")
    assert answer.code == "SERVER"
    assert answer.chunks == []
    assert answer.error is not None
    assert len(answer.error.message) < 400


async def test_a_delta_of_many_megabytes(replay: str) -> None:
    answer = await ask(f"{replay}/generated/big")
    assert len(answer.text) == 5 << 20
    assert len([c for c in answer.chunks if c["type"] == "text-delta"]) == 1
