"""`dsh config`, `dsh doctor` and `dsh models`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh.kernel.config import SETTINGS
from tests.cli.conftest import Run
from tests.history import History

pytestmark = pytest.mark.slow  # each test starts the program, some many times

# config


@pytest.mark.slow
@pytest.mark.rule("CF-1", "CF-2")
def test_set_get_unset(dsh: Run, tmp_path: Path) -> None:
    assert dsh("config", "get", "search.limit").stdout == "20\n"
    assert not (tmp_path / "dsh.db").exists()  # asking makes no database
    assert dsh("config", "set", "search.limit", "7").returncode == 0
    assert dsh("config", "get", "search.limit").stdout == "7\n"
    assert json.loads(dsh("config", "get", "search.limit", "--json").stdout) == {
        "key": "search.limit",
        "value": 7,
        "origin": "stored",
    }
    done = dsh("config", "set", "search.limit", "seven")
    assert (done.returncode, done.stderr) == (2, "dsh: search.limit must be a whole number, not 'seven'\n")
    done = dsh("config", "list", env={"DSH_SEARCH_LIMIT": "seven"})
    assert done.returncode == 3
    assert done.stderr == "dsh: DSH_SEARCH_LIMIT: search.limit must be a whole number, not 'seven'\n"
    assert dsh("config", "set", "search.limit", "0").returncode == 2
    assert dsh("config", "unset", "search.limit").returncode == 0
    assert dsh("config", "get", "search.limit").stdout == "20\n"
    assert dsh("config", "unset", "search.limit").returncode == 0
    assert dsh("config", "unset", "search.limt").returncode == 2


@pytest.mark.slow
def test_every_setting_survives_get_and_set(dsh: Run) -> None:
    for key in ("llm.discover", "retry.retryable_codes", "retry.jitter_ratio", "plugins", "model"):
        value = dsh("config", "get", key).stdout.removesuffix("\n")
        assert dsh("config", "set", key, value).returncode == 0
        assert dsh("config", "get", key).stdout == value + "\n"


@pytest.mark.rule("CF-6", "CF-7")
def test_list_shows_origins_and_no_secrets(dsh: Run) -> None:
    home = Path(os.environ["HOME"]) / ".dsh"
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "m"\n[providers.work]\nbase_url = "https://user:pass@llm.example/v1"\napi_key = "sk-secret"\n'
        'headers = {Authorization = "Bearer sk-secret"}\n'
    )
    dsh("config", "set", "search.limit", "7")
    dsh("config", "set", "model", "other")
    env = {"DSH_READ_LIMIT": "5"}
    lines = {e["key"]: e for e in map(json.loads, dsh("config", "list", "--json", env=env).stdout.splitlines())}
    assert set(SETTINGS) <= set(lines)
    assert (lines["search.limit"]["value"], lines["search.limit"]["origin"]) == (7, "stored")
    assert (lines["read.limit"]["value"], lines["read.limit"]["origin"]) == (5, "environment")
    assert (lines["model"]["value"], lines["model"]["origin"]) == ("m", "file")
    assert lines["bash.timeout_ms"]["origin"] == "default"
    assert lines["providers.work.api_key"]["value"] == "(set)"
    assert lines["providers.work.base_url"]["value"] == "https://llm.example/v1"
    for form in (["config", "list"], ["config", "list", "--json"], ["doctor"], ["doctor", "--json"]):
        shown = dsh(*form).stdout
        assert "sk-secret" not in shown
        assert "pass@" not in shown
    assert "config.toml comes first" in dsh("config", "set", "model", "x").stderr


@pytest.mark.rule("CF-6", "HD-14")
def test_a_broken_personal_file_is_exit_3(dsh: Run, history: History) -> None:
    home = Path(os.environ["HOME"]) / ".dsh"
    home.mkdir()
    (home / "config.toml").write_text("model = \n")
    for arguments in (["search", "x"], ["config", "list"], ["models"]):
        done = dsh(*arguments)
        assert (done.returncode, done.stdout) == (3, ""), arguments
        assert "config.toml is not valid TOML" in done.stderr
        assert done.stderr.count("\n") == 1
    assert dsh("doctor").returncode == 1


def test_path(dsh: Run, tmp_path: Path) -> None:
    lines = dsh("config", "path").stdout.splitlines()
    assert lines == [f"file\t{tmp_path}/home/.dsh/config.toml", f"database\t{tmp_path}/dsh.db"]
    assert dsh("--db", "/x.db", "config", "path").stdout.endswith("database\t/x.db\n")
    assert dsh("config", "path", "--db", "/y.db").stdout.endswith("database\t/y.db\n")


# doctor


def test_doctor_finds_nothing_wrong(dsh: Run, history: History) -> None:
    history.say("s", "hi")
    done = dsh("doctor")
    assert done.returncode == 0, done.stdout
    report = {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}
    assert report["integrity"] == ["ok", "structure"]
    assert report["search index"][1] == "up to event 0, 8 to index at the next search"
    assert report["database"][1] == os.environ["DSH_DB"]
    full = dsh("doctor", "--full", "--json")
    assert full.returncode == 0
    findings = {f["name"]: f for f in map(json.loads, full.stdout.splitlines())}
    assert findings["index matches log"] == {"name": "index matches log", "ok": True, "detail": "every document"}
    assert findings["providers"]["ok"] is None


def test_doctor_without_a_database(dsh: Run, tmp_path: Path) -> None:
    done = dsh("doctor")
    assert done.returncode == 0
    assert "not there yet" in done.stdout
    assert not (tmp_path / "dsh.db").exists()


def test_doctor_names_keys_and_hides_them(dsh: Run) -> None:
    done = dsh("doctor", env={"DEEPSEEK_API_KEY": "sk-123"})
    assert "providers\tok\tdeepseek" in done.stdout
    assert "sk-123" not in done.stdout + done.stderr
    assert "OPENAI_API_KEY" in done.stdout


@pytest.mark.rule("HD-14")
def test_doctor_tells_what_is_broken(dsh: Run, history: History, tmp_path: Path) -> None:
    history.say("s", "hi")
    history.db.close()
    (tmp_path / "dsh.db").write_bytes(b"not a database at all, just text" * 10)
    done = dsh("doctor")
    assert done.returncode == 1
    assert "database opens\tbroken\t" in done.stdout


def test_doctor_sees_an_index_that_does_not_match(dsh: Run, history: History, tmp_path: Path) -> None:
    import apsw

    history.say("s", "needle")
    assert dsh("search", "needle").returncode == 0
    history.db.close()
    db = apsw.Connection(str(tmp_path / "dsh.db"))
    db.execute("INSERT INTO search(search) VALUES ('delete-all')")
    db.close()
    assert dsh("doctor").returncode == 0
    done = dsh("doctor", "--full")
    assert done.returncode == 1
    assert "index matches log\tbroken\t" in done.stdout


def test_doctor_on_a_terminal(history: History, terminal: Callable[..., tuple[int, str]]) -> None:
    code, shown = terminal("doctor", NO_COLOR="1")
    assert code == 0
    assert "integrity         ok      structure" in shown


# models


@pytest.mark.rule("HD-14")
def test_no_models(dsh: Run) -> None:
    done = dsh("models")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("dsh: no model is configured\ndsh: set DEEPSEEK_API_KEY")


@pytest.mark.slow
def test_models_of_named_providers(dsh: Run) -> None:
    home = Path(os.environ["HOME"]) / ".dsh"
    home.mkdir()
    (home / "config.toml").write_text(
        '[providers.work]\nbase_url = "http://127.0.0.1:9/v1"\nmodels = ["big", "small"]\nmodel = "small"\n'
        '[providers.gone]\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    done = dsh("models")
    assert done.returncode == 0
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()] == [
        ["work/big", "", ""],
        ["work/small", "", "default"],
    ]
    assert done.stderr.startswith("dsh: gone: ")
    lines = [json.loads(line) for line in dsh("models", "--json").stdout.splitlines()]
    assert lines[-1]["provider"] == "gone"
    assert "error" in lines[-1]
    assert dsh("models", "--provider", "gone").returncode == 1
    done = dsh("models", "--provider", "nosuch")
    assert (done.returncode, done.stdout) == (3, "")


def test_removing_a_local_model_that_is_not_there(dsh: Run) -> None:
    done = dsh("models", "remove", "local")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert dsh("models", "install", "remote").returncode == 2
