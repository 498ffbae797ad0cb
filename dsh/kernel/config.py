"""Settings: one table of what can be set, and where each value comes from.

Order (first wins): a command's flag, a `DSH_*` variable, the personal file `config.toml` in the harness home, the
value stored in the database by `dsh config set`, the default. A wrong value stops the start with the key's name; it
is never silently replaced (CF-2). Named providers are tables of the personal file:

    model = "deepseek-chat"
    [providers.work]
    base_url = "https://llm.example/v1"
    api_key_env = "WORK_KEY"

Prices have keys of their own, `prices.PROVIDER/MODEL.FIELD`, in the file `[prices."PROVIDER/MODEL"]` (dsh.llm.prices).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dsh.core.errors import ConfigError

Origin = Literal["flag", "environment", "file", "stored", "default"]


class Setting(NamedTuple):
    """One key: its type (`int`, `float`, `bool`, `str` or `list` of strings), default, an optional check that
    returns a complaint, and a line of help."""

    key: str
    type: type
    default: Any
    help: str
    check: Callable[[Any], str | None] | None = None
    secret: bool = False

    @property
    def variable(self) -> str:
        return "DSH_" + self.key.upper().replace(".", "_")


def _at_least(low: int) -> Callable[[Any], str | None]:
    return lambda v: None if v >= low else f"must be at least {low}"


def _positive_ms(value: Any) -> str | None:
    return None if 0 < value <= 2147483647 else "must be in 1..2147483647 milliseconds"


def _amount(value: Any) -> str | None:
    return None if 0 <= value < float("inf") else "must be a number from 0 on"


def _ratio(value: Any) -> str | None:
    return None if 0 <= value <= 1 else "must be in 0..1"


def title_model(value: str) -> str | None:
    """What is wrong with what should make titles; None if nothing."""
    provider, _, model = value.partition("/")
    fits = value in ("off", "same") or bool(provider.strip() and model.strip())
    return None if fits else "must be off, same (the model of the session) or PROVIDER/MODEL"


def _title_cadence(value: str) -> str | None:
    known = ("first-message", "all-user-messages")
    return None if value in known else f"must be {' or '.join(known)}"


SETTINGS: dict[str, Setting] = {
    s.key: s
    for s in (
        Setting("provider", str, "", "provider route of new sessions; empty chooses by what is configured"),
        Setting("model", str, "", "model of new sessions; empty takes the provider's default"),
        Setting("reasoning_effort", str, "", "reasoning effort asked for; empty leaves the provider's own"),
        Setting("persona", str, "", "text put into the system prompt after the identity line"),
        Setting("plugins", list, [], "modules of third-party plugins to start; in [plugins] of the file: modules"),
        Setting("plugins.enabled", bool, True, "start plugins that are not part of the program"),
        Setting("plugins.disabled", list, [], "names of plugins not to start"),
        Setting("plugins.start_timeout_ms", int, 5000, "time a plugin may take to start", _positive_ms),
        Setting("loop.max_parallel_tool_calls", int, 10, "tool bodies in flight in one step", _at_least(1)),
        Setting("loop.max_steps", int, 500, "steps a turn may take; 0 sets no limit", _at_least(0)),
        Setting("limits.max_cost", float, 0.0, "USD that a run may spend; 0 sets no limit", _amount),
        Setting("limits.max_tokens_total", int, 0, "tokens that a run may use in all; 0 sets no limit", _at_least(0)),
        Setting("llm.idle_timeout_ms", int, 300_000, "silence of a stream that counts as a failure", _positive_ms),
        Setting("llm.discover", bool, True, "look for model servers on their usual loopback ports"),
        Setting("retry.max_transient_retries", int, 2, "further tries after a transient failure", _at_least(0)),
        Setting("retry.initial_delay_ms", int, 500, "wait before the first retry", _positive_ms),
        Setting("retry.max_delay_ms", int, 10_000, "longest wait before a retry", _positive_ms),
        Setting("retry.jitter_ratio", float, 0.1, "random part of a wait", _ratio),
        Setting(
            "retry.retryable_codes",
            list,
            ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED"],
            "failure codes worth a retry",
            lambda v: None if v and len(set(v)) == len(v) else "must be a list without repeats, not empty",
        ),
        Setting("bash.timeout_ms", int, 120_000, "time limit of a shell command", _positive_ms),
        Setting("bash.max_timeout_ms", int, 600_000, "largest time limit the model may ask for", _positive_ms),
        Setting("bash.max_output_bytes", int, 64_000, "bytes of each output stream kept in memory", _at_least(1)),
        Setting("bash.max_spill_bytes", int, 67_108_864, "bytes of a stream kept in a spill file", _at_least(1)),
        Setting("bash.grace_ms", int, 2_000, "wait between SIGTERM and SIGKILL", _positive_ms),
        Setting("read.limit", int, 2000, "lines a read returns at most", _at_least(1)),
        Setting("read.max_line_length", int, 2000, "characters of a line a read returns", _at_least(1)),
        Setting("read.max_bytes", int, 51_200, "bytes a read returns at most", _at_least(1)),
        Setting("search_tools.glob_max_results", int, 100, "paths a glob shows", _at_least(1)),
        Setting("search_tools.grep_max_matches", int, 250, "matches a grep shows", _at_least(1)),
        Setting("search_tools.grep_max_line_bytes", int, 2000, "bytes of a line a grep shows", _at_least(1)),
        Setting("search_tools.raw_output_max_bytes", int, 20_000_000, "raw ripgrep output accepted", _at_least(1)),
        Setting("search_tools.timeout_ms", int, 30_000, "time limit of glob and grep", _positive_ms),
        Setting("store.busy_timeout_ms", int, 30_000, "wait for a locked database", _positive_ms),
        Setting("session_tools.enabled", bool, False, "offer the model tools that read its folder's other sessions"),
        Setting("session_tools.max_search_results", int, 100, "hits that such a search shows", _at_least(1)),
        Setting("session_tools.timeout_ms", int, 30_000, "time limit of such a search", _positive_ms),
        Setting("search.limit", int, 20, "hits a search shows", _at_least(1)),
        Setting("search.snippet_chars", int, 240, "characters of a snippet", _at_least(1)),
        Setting("titles.model", str, "off", "model that titles sessions: off, same or PROVIDER/MODEL", title_model),
        Setting("titles.automatic", str, "first-message", "or all-user-messages: when it is asked", _title_cadence),
        Setting("titles.fallback_max_words", int, 12, "words of a prompt that become a title", _at_least(1)),
        Setting("titles.fallback_max_bytes", int, 80, "bytes of a prompt that become a title", _at_least(1)),
        Setting("titles.max_title_bytes", int, 80, "bytes of a model's title", _at_least(1)),
        Setting("titles.target_words", int, 5, "words that a model is asked for", _at_least(1)),
        Setting("titles.target_cjk_characters", int, 10, "the same in Chinese, Japanese, Korean", _at_least(1)),
        Setting("titles.max_input_bytes", int, 4096, "bytes of prompts sent to a model for a title", _at_least(1)),
        Setting("titles.max_output_tokens", int, 64, "tokens of its answer", _at_least(1)),
        Setting("titles.timeout_ms", int, 60_000, "time it may take", _positive_ms),
    )
}


def home() -> Path:
    """The harness home: `$DSH_HOME` if not blank, else `~/.dsh`, absolute (CF-3)."""
    given = os.environ.get("DSH_HOME", "")
    if given.strip():
        return Path(os.path.abspath(os.path.expanduser(given.replace("\\", "/") if given[:2] == "~\\" else given)))
    return Path(os.path.expanduser("~")) / ".dsh"


def database_path(flag: str | None = None) -> Path:
    """`--db`, else `DSH_DB`, else `dsh.db` in the platform's user data folder (CF-3)."""
    given = flag or os.environ.get("DSH_DB", "")
    if given.strip():
        return Path(os.path.abspath(os.path.expanduser(given)))
    return Path(data_folder()) / "dsh.db"


def data_folder() -> str:
    """The platform's user data folder. The usual Linux case is answered without the import, which costs more than
    a whole search; platformdirs answers every other."""
    if os.uname().sysname == "Linux":
        base = os.environ.get("XDG_DATA_HOME", "").strip() or os.path.expanduser("~/.local/share")
        return os.path.join(base, "dsh")
    import platformdirs

    return platformdirs.user_data_dir("dsh", appauthor=False)


def _parse(setting: Setting, text: str, where: str = "") -> Any:
    """Read a value written as text, in a variable or on a command line; `where` begins the complaint."""
    if setting.type is bool:
        lowered = text.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{where}{setting.key} must be true or false, not {text!r}")
    if setting.type is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if setting.type is str:
        return text
    try:
        return setting.type(text)
    except ValueError:
        raise ConfigError(f"{where}{setting.key} must be {_TYPE_NAMES[setting.type]}, not {text!r}") from None


_TYPE_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list of texts",
}


def check(setting: Setting, value: Any, where: str) -> Any:
    """The value, or ConfigError INVALID_CONFIG naming the key and where it was set (CF-2)."""
    fits = isinstance(value, setting.type) and not (isinstance(value, bool) and setting.type is not bool)
    if setting.type is float and type(value) is int:
        value, fits = float(value), True
    if setting.type is list and fits:
        fits = all(isinstance(v, str) for v in value)
    if not fits:
        raise ConfigError(f"{where}: {setting.key} must be {_TYPE_NAMES[setting.type]}")
    complaint = setting.check(value) if setting.check else None
    if complaint:
        raise ConfigError(f"{where}: {setting.key} {complaint}")
    return value


def parse_setting(key: str, text: str) -> Any:
    """Check and convert a value typed by a person for `key`; ConfigError for an unknown key or a bad value."""
    return check(known(key), _parse(known(key), text), "value")


PRICE_FIELDS = ("input", "output", "cache_read", "cache_write")


def _find(key: str) -> Setting | None:
    """The setting of a key; that of a price is made for its model, whose name may hold dots."""
    group, _, rest = key.partition(".")
    model, _, field = rest.rpartition(".")
    if group == "prices" and "/" in model and field in PRICE_FIELDS:
        return Setting(key, float, 0.0, "USD per million tokens", _amount)
    return SETTINGS.get(key)


def known(key: str) -> Setting:
    if (setting := _find(key)) is not None:
        return setting
    import difflib

    near = difflib.get_close_matches(key, SETTINGS, 1)
    hint = f"did you mean {near[0]}?" if near else None
    if key.startswith("prices."):
        hint = f"prices.PROVIDER/MODEL.FIELD, with one of the fields {', '.join(PRICE_FIELDS)}"
    raise ConfigError(f"no setting is called {key!r}", hint=hint)


class Config:
    """The settings in force for this process, each with the place it came from."""

    def __init__(self, values: Mapping[str, tuple[Any, Origin]], providers: Mapping[str, Mapping[str, Any]]) -> None:
        self._values = dict(values)
        self.providers = {name: dict(table) for name, table in providers.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key][0] if key in self._values else known(key).default

    @property
    def prices(self) -> dict[str, dict[str, float]]:
        """The prices that the user gave, by PROVIDER/MODEL and field."""
        found: dict[str, dict[str, float]] = {}
        for key in self.price_keys:
            model, _, field = key.removeprefix("prices.").rpartition(".")
            found.setdefault(model, {})[field] = self[key]
        return found

    @property
    def price_keys(self) -> list[str]:
        return [key for key in self._values if key.startswith("prices.")]

    def origin(self, key: str) -> Origin:
        return self._values[key][1] if key in self._values else "default"

    def with_flags(self, **flags: Any) -> Config:
        """A copy in which given (not None) flags win; `a__b` stands for the key `a.b`."""
        values = dict(self._values)
        for name, value in flags.items():
            if value is not None:
                key = name.replace("__", ".")
                values[key] = (check(known(key), value, "flag"), "flag")
        return Config(values, self.providers)


def load(stored: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None) -> Config:
    """Read every source. `stored` are the values kept in the database, already JSON.

    A missing personal file is fine; one that is unreadable, unparsable or of the wrong shape is ConfigError (CF-6).
    """
    env = os.environ if environ is None else environ
    values: dict[str, tuple[Any, Origin]] = {}
    for key, value in (stored or {}).items():
        if (setting := _find(key)) is not None:
            values[key] = (check(setting, value, "stored setting"), "stored")
    file, providers = _personal_file()
    for key, value in file.items():
        values[key] = (check(known(key), value, str(config_path())), "file")
    for setting in SETTINGS.values():
        text = env.get(setting.variable)
        if text is not None and text.strip():
            value = _parse(setting, text, f"{setting.variable}: ")
            values[setting.key] = (check(setting, value, setting.variable), "environment")
    return Config(values, providers)


def config_path() -> Path:
    return home() / "config.toml"


_PROVIDER_KEYS = {
    "base_url": str, "api_key": str, "api_key_env": str, "model": str, "models": list,
    "kind": str, "thinking": str, "headers": dict, "context_window": int,
}  # fmt: skip


def _personal_file() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    path = config_path()
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    import tomllib

    try:
        table = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    providers = table.pop("providers", {})
    if not isinstance(providers, dict) or not all(isinstance(t, dict) for t in providers.values()):
        raise ConfigError(f"{path}: providers must be tables, as in [providers.work]")
    for name, entry in providers.items():
        for key, value in entry.items():
            if key not in _PROVIDER_KEYS:
                known_keys = ", ".join(_PROVIDER_KEYS)
                raise ConfigError(f"{path}: providers.{name}.{key} is not a setting; known: {known_keys}")
            if not isinstance(value, _PROVIDER_KEYS[key]):
                raise ConfigError(f"{path}: providers.{name}.{key} has the wrong type")
    flat = _flat_prices(path, table.pop("prices", {}))
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update({key if (key, k) == ("plugins", "modules") else f"{key}.{k}": v for k, v in value.items()})
        else:
            flat[key] = value
    for key in flat:
        if _find(key) is None:
            raise ConfigError(f"{path}: {known_or_hint(key)}")
    return flat, providers


def _flat_prices(path: Path, tables: Any) -> dict[str, Any]:
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f'{path}: prices must be tables, as in [prices."openai/gpt-5-mini"]')
    flat = {f"prices.{model}.{field}": value for model, table in tables.items() for field, value in table.items()}
    for key in flat:
        if _find(key) is None:
            fields = ", ".join(PRICE_FIELDS)
            raise ConfigError(f"{path}: {key} is not a price; a name is PROVIDER/MODEL, its fields are {fields}")
    return flat


def known_or_hint(key: str) -> str:
    try:
        known(key)
    except ConfigError as error:
        return error.message + (f" ({error.hint})" if error.hint else "")
    return key
