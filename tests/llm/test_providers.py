"""Which model a run uses, from flags down to what this machine has, and what `dsh models` offers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsh.core.errors import ConfigError, exit_code
from dsh.core.messages import CallConfig
from dsh.kernel.config import Config, load
from dsh.llm import discovery, local, providers
from dsh.llm.providers import Selection, choose, install_mock, install_routes, offered
from dsh.llm.routes import configured
from dsh.llm.service import LlmService
from tests.llm.helpers import collect, host, request
from tests.provider import FakeProvider, text

EMPTY = Config({}, {})
DS = {"DEEPSEEK_API_KEY": "sk-d"}
OA = {"OPENAI_API_KEY": "sk-o"}
OR = {"OPENROUTER_API_KEY": "sk-r"}


def config_file(text: str) -> Config:
    """The configuration as read from a personal file with this content."""
    from dsh.kernel.config import config_path

    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text, "utf-8")
    return load(environ={})


def header(provider: str, model: str, **rest: Any) -> CallConfig:
    made: Any = {"provider": provider, "model": model, **rest}
    config: CallConfig = made
    return config


async def pick(config: Config = EMPTY, env: dict[str, str] | None = None, **keywords: Any) -> tuple[str, str]:
    chosen = await choose(config.with_flags(llm__discover=False), environ=env or {}, **keywords)
    return chosen.provider, chosen.model


async def refused(config: Config = EMPTY, env: dict[str, str] | None = None, **keywords: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        await pick(config, env, **keywords)
    assert exit_code(caught.value.code) == 3
    return caught.value


# --- what is configured


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (DS, ("deepseek", "deepseek-chat")),
        (OA, ("openai", "gpt-5-mini")),
        (OR, ("openrouter", "deepseek/deepseek-chat")),
        ({**OR, **OA, **DS}, ("deepseek", "deepseek-chat")),
        ({**OR, **OA}, ("openai", "gpt-5-mini")),
        ({"DEEPSEEK_API_KEY": " ", **OA}, ("openai", "gpt-5-mini")),
    ],
)
@pytest.mark.rule("LS-90", "LS-93")
async def test_keys_in_the_environment(env: dict[str, str], wanted: tuple[str, str]) -> None:
    assert await pick(env=env) == wanted


@pytest.mark.rule("LS-90")
async def test_nothing_configured_names_the_three_ways_on() -> None:
    error = await refused()
    assert error.code == "NO_MODEL"
    told = f"{error.message} {error.hint}"
    for way in ("DEEPSEEK_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "--base-url", "dsh models install local"):
        assert way in told
    error = await refused(model="openai/gpt-5")
    assert "OPENAI_API_KEY" in error.message


@pytest.mark.rule("LS-90")
async def test_a_provider_without_its_key_names_the_variable() -> None:
    asked: list[Any] = [{"provider": "openai"}, {"model": "openai/gpt-5"}]
    for keywords in asked:
        error = await refused(env=DS, **keywords)
        assert "OPENAI_API_KEY" in error.message
    error = await refused(env=DS, provider="deepsek")
    assert error.hint == "did you mean deepseek?"


@pytest.mark.rule("LS-92")
async def test_the_configured_provider_and_model() -> None:
    both = EMPTY.with_flags(provider="openrouter", model="x/y")
    assert await pick(both, {**DS, **OR}) == ("openrouter", "x/y")
    stored = Config({"model": ("deepseek-reasoner", "stored")}, {})
    assert await pick(stored, {**DS, **OA}) == ("deepseek", "deepseek-reasoner")
    # a model that was set for the usual provider is not taken to another
    assert await pick(stored, {**DS, **OA}, provider="openai") == ("openai", "gpt-5-mini")
    prefixed = Config({"model": ("openai/gpt-5", "stored")}, {})
    assert await pick(prefixed, {**DS, **OA}) == ("openai", "gpt-5")
    environment = Config({"model": ("gpt-6", "environment")}, {})
    assert await pick(environment, {**DS, **OA}, provider="openai") == ("openai", "gpt-6")


# --- -m


@pytest.mark.parametrize(
    ("keywords", "wanted"),
    [
        ({"model": "deepseek-reasoner"}, ("deepseek", "deepseek-reasoner")),
        ({"model": "deepseek/deepseek-reasoner"}, ("deepseek", "deepseek-reasoner")),
        ({"model": "openrouter/openai/gpt-5"}, ("openrouter", "openai/gpt-5")),
        ({"model": "openai/gpt-5", "provider": "openrouter"}, ("openrouter", "openai/gpt-5")),
        ({"model": "openrouter/auto", "provider": "openrouter"}, ("openrouter", "openrouter/auto")),
        ({"model": "deepseek/x", "provider": "deepseek"}, ("deepseek", "x")),
        ({"model": "never-heard-of"}, ("deepseek", "never-heard-of")),
    ],
)
@pytest.mark.rule("LS-91")
async def test_the_model_flag(keywords: Any, wanted: tuple[str, str]) -> None:
    assert await pick(env={**DS, **OR}, **keywords) == wanted


@pytest.mark.rule("LS-91")
async def test_a_slash_is_part_of_an_id_where_ids_have_them() -> None:
    assert await pick(env=OR, model="openai/gpt-5") == ("openrouter", "openai/gpt-5")


@pytest.mark.rule("LS-91")
async def test_a_wrong_name_suggests_near_ones() -> None:  # case P2 (a)
    error = await refused(env=DS, model="nosuch/model")
    assert error.code == "NO_MODEL"
    assert "nosuch/model" in error.message
    assert "deepseek/deepseek-" in (error.hint or "")
    error = await refused(env=DS, model="depseek/deepseek-reasoner")
    assert (error.hint or "").startswith("did you mean deepseek/deepseek-reasoner")


# --- --base-url


@pytest.mark.rule("LS-90", "LS-93", "LS-95")
async def test_a_base_url() -> None:
    with FakeProvider(models=["first", "second"]) as fake:
        place = urlsplit(fake.base_url).netloc
        assert await pick(base_url=fake.base_url + "/") == (place, "first")
        assert await pick(env={"DSH_BASE_URL": fake.base_url, **DS}) == (place, "first")
        assert await pick(base_url=fake.base_url, model="a/b", env=DS) == (place, "a/b")
        assert await pick(base_url=fake.base_url, model="deepseek/x", env=DS) == (place, "deepseek/x")
        assert await pick(base_url=fake.base_url, model=f"{place}/x") == (place, "x")
        assert await pick(env={"DSH_BASE_URL": fake.base_url, **DS}, model="deepseek/x") == ("deepseek", "x")
        assert await pick(base_url=fake.base_url, provider="mine") == ("mine", "first")
        assert await pick(base_url=fake.base_url, provider="openai") == ("openai", "first")
        assert await pick(env={**OA, "OPENAI_BASE_URL": fake.base_url}) == ("openai", "first")
        old = header("deepseek", "deepseek-chat")
        assert await pick(base_url=fake.base_url, header=old, env=DS) == (place, "first")
        assert await pick(base_url=fake.base_url, header=header(place, "second")) == (place, "second")
        count = len(fake.other)
        assert await pick(base_url=fake.base_url, model="m") == (place, "m")
        assert len(fake.other) == count
    with FakeProvider(models=None) as fake:
        assert (await pick(base_url=fake.base_url))[1] == "default"
    assert (await pick(base_url="http://127.0.0.1:9/v1")) == ("127.0.0.1:9", "default")


@pytest.mark.rule("LS-94")
async def test_the_key_of_a_base_url() -> None:
    async def key(env: dict[str, str], **keywords: Any) -> str:
        chosen = await choose(EMPTY, base_url="http://h:1/v1", model="m", environ=env, **keywords)
        return chosen.routes[chosen.provider].key

    assert await key({}) == ""
    assert await key(OA) == "sk-o"
    assert await key({**OA, "DSH_API_KEY": "sk-own"}) == "sk-own"
    assert await key({**OA, **DS}, provider="deepseek") == "sk-d"
    assert await key(DS) == ""


@pytest.mark.rule("LS-59")
async def test_urls_and_keys_are_checked() -> None:
    for url in ("127.0.0.1:8080", "ftp://x", "http://", "http://a b/", "http://h:99999/"):
        error = await refused(base_url=url)
        assert error.code == "INVALID_CONFIG"
    for key in ("sk-a\nb", "sk a", "sk-é"):
        error = await refused(env={"DEEPSEEK_API_KEY": key})
        assert "DEEPSEEK_API_KEY" in error.message
        assert key not in error.message
    routes = configured(EMPTY, environ={"DEEPSEEK_API_KEY": " sk \n", "DEEPSEEK_BASE_URL": "http://h//"})
    assert (routes["deepseek"].key, routes["deepseek"].base_url) == ("sk", "http://h/")


# --- a session that goes on


@pytest.mark.rule("LS-92")
async def test_a_session_stays_with_its_provider() -> None:
    old = header("openai", "gpt-old")
    assert await pick(EMPTY.with_flags(provider="deepseek"), {**DS, **OA}, header=old) == ("openai", "gpt-old")
    assert await pick(env={**DS, **OA}, header=old, model="gpt-new") == ("openai", "gpt-new")
    assert await pick(env={**DS, **OA}, header=old, provider="deepseek") == ("deepseek", "deepseek-chat")
    assert await pick(env={**DS, **OA}, header=old, model="deepseek/x") == ("deepseek", "x")
    error = await refused(env=DS, header=old)
    assert "OPENAI_API_KEY" in error.message
    error = await refused(env=DS, header=header("gone:1", "m"))
    assert "this session's provider 'gone:1'" in error.message


async def test_efforts() -> None:
    old = header("deepseek", "deepseek-v4-pro", reasoningEffort="max")
    high = Config({"reasoning_effort": ("high", "file")}, {})

    async def effort(config: Config, **keywords: Any) -> str | None:
        return (await choose(config, environ=DS, **keywords)).effort

    assert await effort(EMPTY) is None
    assert await effort(high) == "high"
    assert await effort(high, header=old) == "max"
    assert await effort(high, header=old, model="deepseek-chat") == "high"
    assert await effort(EMPTY.with_flags(reasoning_effort="off"), header=old) == "off"


# --- named providers

FILE = """
model = "work/big"
[providers.work]
base_url = "{url}"
api_key_env = "WORK_KEY"
headers = {{ "X-Team" = "blue" }}
context_window = 9000
[providers.home]
base_url = "http://127.0.0.1:1/v1"
model = "small"
[providers.deepseek]
base_url = "http://127.0.0.1:2"
thinking = "disabled"
"""


@pytest.mark.rule("LS-90")
async def test_named_providers() -> None:
    config = config_file(FILE.format(url="http://127.0.0.1:3/v1"))
    assert await pick(config, {"WORK_KEY": "k"}) == ("work", "big")
    assert await pick(config, {"WORK_KEY": "k"}, provider="home") == ("home", "small")
    assert await pick(config, {"WORK_KEY": "k"}, model="home/other/x") == ("home", "other/x")
    # without its key the first usable one is taken; asked for by name it is an error
    assert await pick(config_file(FILE.format(url="http://h/v1").replace('model = "work/big"', ""))) == (
        "home",
        "small",
    )
    error = await refused(config, provider="work")
    assert "WORK_KEY" in error.message
    routes = configured(config, environ=DS)
    assert routes["deepseek"].base_url == "http://127.0.0.1:2"
    assert routes["work"].context_window == 9000


@pytest.mark.rule("LS-93")
async def test_a_named_provider_without_a_model_asks_its_server() -> None:
    with FakeProvider(models=["only"]) as fake:
        config = config_file(f'[providers.work]\nbase_url = "{fake.base_url}"\n')
        assert await pick(config) == ("work", "only")
    error = await refused(config)
    assert "-m work/MODEL" in (error.hint or "")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("model = 'x'", "base_url is missing"),
        ("base_url = 'nowhere'", "providers.w.base_url"),
        ("base_url = 'http://h'\nkind = 'soap'", "providers.w.kind"),
        ("base_url = 'http://h'\nthinking = 'maybe'", "providers.w.thinking"),
        ("base_url = 'http://h'\nmodels = ['a', 'a']", "providers.w.models"),
        ("base_url = 'http://h'\ncontext_window = 0", "providers.w.context_window"),
        ("base_url = 'http://h'\nheaders = { a = 1 }", "providers.w.headers.a"),
        ("base_url = 'http://h'\napi_key = 'a b'", "providers.w.api_key"),
    ],
)
async def test_mistakes_in_a_table_are_named(line: str, named: str) -> None:
    error = await refused(config_file(f"[providers.w]\n{line}\n"))
    assert named in error.message


@pytest.mark.rule("LS-51")
async def test_a_deployment_without_thinking_takes_no_configured_effort() -> None:
    config = config_file("reasoning_effort = 'high'\n[providers.deepseek]\nthinking = 'disabled'\n")
    error = await refused(config, DS)
    assert "thinking is disabled" in error.message
    assert await pick(config.with_flags(reasoning_effort="off"), DS) == ("deepseek", "deepseek-chat")


# --- what this machine has


def install_payload(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """An installation that is complete by its manifest; nothing here starts it."""
    monkeypatch.setenv("DSH_MODELS", str(folder))
    payload = local.payload_dir()
    payload.mkdir(parents=True)
    (payload / "x").write_bytes(b"1")
    manifest = {"pins": local.pins(), "files": {"x": {"size": 1, "sha256": ""}}}
    (payload / local.MANIFEST).write_text(json.dumps(manifest), "utf-8")


@pytest.mark.rule("LS-90")
async def test_the_local_model_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_payload(monkeypatch, tmp_path)
    stored = Config({"model": ("deepseek-chat", "stored")}, {})
    chosen = await choose(stored.with_flags(llm__discover=False), environ={})
    assert (chosen.provider, chosen.model) == ("local", "smollm2-135m-instruct")
    assert chosen.notice == "using the local model smollm2-135m-instruct (no key or server found)"
    assert await pick(env=DS) == ("deepseek", "deepseek-chat")
    asked = await choose(EMPTY, environ=DS, provider="local")
    assert (asked.provider, asked.notice) == ("local", None)
    assert await pick(env=DS, model="local/smollm2-135m-instruct") == ("local", "smollm2-135m-instruct")
    offers = await offered(EMPTY.with_flags(llm__discover=False), environ={})
    assert [o["provider"] for o in offers] == ["local"]
    assert offers[0]["models"][0]["contextWindow"] == local.CONTEXT_WINDOW


async def test_asking_for_a_local_model_that_is_not_there() -> None:
    error = await refused(env=DS, provider="local")
    assert error.hint == "dsh models install local"


@pytest.mark.rule("LS-90")
async def test_servers_on_their_usual_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EMPTY.with_flags(llm__discover=True)
    with FakeProvider(models=["llama"]) as fake, socket.create_server(("127.0.0.1", 0)) as silent:
        port = urlsplit(fake.base_url).port
        servers = {
            "ollama": ("Ollama", 9),
            "lmstudio": ("LM Studio", silent.getsockname()[1]),
            "llama-server": ("llama-server", port),
        }
        monkeypatch.setattr(discovery, "SERVERS", servers)
        chosen = await choose(config, environ={})
        assert (chosen.provider, chosen.model, chosen.notice) == ("llama-server", "llama", None)
        stored = Config({"model": ("deepseek-chat", "stored"), "llm.discover": (True, "flag")}, {})
        assert (await choose(stored, environ={})).model == "llama"
        count = len(fake.other)
        assert (await choose(config, environ=DS)).provider == "deepseek"
        assert len(fake.other) == count
        assert (await choose(config, environ=DS, model="llama-server/x")).provider == "llama-server"
        assert [o["provider"] for o in await offered(config, environ={})] == ["llama-server"]


# --- adapters and offers


async def test_installed_routes_work_and_are_closed_with_the_host() -> None:
    with FakeProvider(text("one")) as fake:
        made = host()
        env = {**DS, "DEEPSEEK_BASE_URL": fake.base_url}
        chosen: Selection = await choose(made.config, environ=env)
        install_routes(made.root, made.config, chosen.routes)
        service = made.get(LlmService)
        assert [p["id"] for p in service.providers()] == ["deepseek"]
        asked = request(provider="deepseek", model=chosen.model)
        assert (await collect(service.stream(asked))).text == "one"
        assert fake.requests[0].headers["authorization"] == "Bearer sk-d"
        await made.close()
        assert service.providers() == []
        assert fake.requests[0].body["model"] == "deepseek-chat"


async def test_the_mock_route(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"text": "played"}', "utf-8")
    made = host()
    chosen = install_mock(made.root, str(tmp_path / "m.jsonl"))
    asked = request(provider=chosen.provider, model=chosen.model)
    assert (await collect(made.get(LlmService).stream(asked))).text == "played"


async def test_offers() -> None:
    with FakeProvider(models=["deepseek-chat", "new-model"]) as fake:
        config = config_file(
            f'[providers.work]\nbase_url = "{fake.base_url}"\nmodel = "new-model"\n'
            '[providers.dead]\nbase_url = "http://127.0.0.1:9/v1"\n'
            '[providers.keyless]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "NOPE"\nmodels = ["a"]\n'
        ).with_flags(llm__discover=False)
        env = {**DS, "DEEPSEEK_BASE_URL": fake.base_url}
        offers = {o["provider"]: o for o in await offered(config, environ=env)}
        assert list(offers) == ["deepseek", "work", "dead", "keyless"]
        deepseek = {m["id"]: m for m in offers["deepseek"]["models"]}
        assert deepseek["deepseek-chat"] == {
            "id": "deepseek-chat",
            "name": "DeepSeek Chat",
            "default": True,
            "contextWindow": 128_000,
            "efforts": ["off", "high", "max"],
        }
        assert deepseek["deepseek-v4-pro"]["defaultEffort"] == "high"
        assert "new-model" in deepseek
        assert [(m["id"], m["default"]) for m in offers["work"]["models"]] == [
            ("deepseek-chat", False),
            ("new-model", True),
        ]
        assert "127.0.0.1:9" in offers["dead"]["error"]
        assert offers["keyless"]["error"] == "NOPE is not set"
        only = await offered(config, provider="work", environ=env)
        assert [o["provider"] for o in only] == ["work"]
        with pytest.raises(ConfigError):
            await offered(config, provider="nobody", environ=env)


@pytest.mark.rule("LS-95")
def test_the_choice_costs_no_import() -> None:
    """A run with a key chooses without loading the HTTP library."""
    import subprocess
    import sys

    program = (
        "import sys, trio\n"
        "from dsh.kernel.config import Config\n"
        "from dsh.llm.providers import choose\n"
        "print(trio.run(lambda: choose(Config({}, {}), environ={'DEEPSEEK_API_KEY': 'k'})).model)\n"
        "print('httpx' in sys.modules, 'certifi' in sys.modules)\n"
    )
    root = Path(providers.__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["deepseek-chat", "False", "False"]
