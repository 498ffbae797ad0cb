"""How each program is asked the same question, with the benchmark's server as its only model.

A peer is taken from the path given or from PATH, gets a home of its own, and is left out, with a line that says so,
when it is not there. Nothing is installed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scripts.lib.bench_kit import ROOT, environment

PROMPT = "Say a few words."


class Program(NamedTuple):
    """A command line that asks once, and its environment."""

    argv: list[str]
    env: dict[str, str]


def dsh(launcher: Path, base_url: str, home: Path) -> Program:
    # the one-file program unpacks itself once and not for each home
    cache = str(home.parent / "cache")
    env = environment(home, DSH_DB=str(home / "dsh.db"), DSH_HOME=str(home / ".dsh"), XDG_CACHE_HOME=cache)
    return Program([str(launcher), "run", PROMPT, "--base-url", base_url, "-m", "bench"], env)


def _codex(program: Path, base_url: str, home: Path) -> Program:
    config = f"""model = "bench"
model_provider = "bench"
[model_providers.bench]
name = "bench"
base_url = "{base_url}"
wire_api = "responses"
request_max_retries = 0
[analytics]
enabled = false
"""
    (home / "config.toml").write_text(config)
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Program([str(program), "exec", *flags, PROMPT], environment(home, CODEX_HOME=str(home)))


def _native(program: Path) -> Path | None:
    """The program itself where npm put a JavaScript launcher before it."""
    found = program.resolve().parent.parent.parent.glob("codex-*/vendor/*/bin/codex")
    return next((p for p in found if os.access(p, os.X_OK)), None)


def _pi(program: Path, base_url: str, home: Path) -> Program:
    provider = {"baseUrl": base_url, "api": "openai-completions", "apiKey": "none", "models": [{"id": "bench"}]}
    (home / "models.json").write_text(json.dumps({"providers": {"bench": provider}}))
    env = environment(home, PI_CODING_AGENT_DIR=str(home), PI_OFFLINE="1", PI_TELEMETRY="0")
    return Program([str(program), "-p", "--provider", "bench", "--model", "bench", PROMPT], env)


def _llm(program: Path, base_url: str, home: Path) -> Program:
    model = f"- model_id: bench\n  model_name: bench\n  api_base: {base_url}\n"
    (home / "extra-openai-models.yaml").write_text(model)
    env = environment(home, LLM_USER_PATH=str(home), OPENAI_API_KEY="none")
    return Program([str(program), "-m", "bench", PROMPT], env)


Maker = Callable[[Path], Program]

_PEERS: Mapping[str, Callable[[Path, str, Path], Program]] = {"codex": _codex, "pi": _pi, "llm": _llm}
NAMES = tuple(_PEERS)


def programs(base_url: str, given: Mapping[str, str | None], binary: str | None) -> dict[str, Maker]:
    """Ours first, then the peers that are there; each makes its command line for a home folder."""
    found: dict[str, Maker] = {"dsh": partial(dsh, ROOT / "scripts" / "dsh", base_url)}
    if binary:
        found["dsh, one file"] = partial(dsh, Path(binary).resolve(), base_url)
    for name, make in _PEERS.items():
        path = given.get(name) or shutil.which(name)
        if path is None:
            print(f"  {name} is not on PATH (--{name} PATH names it): left out")
            continue
        found[name] = partial(make, Path(path).absolute(), base_url)
        if name == "codex" and (native := _native(Path(path))) is not None:
            found["codex, without npm's launcher"] = partial(make, native, base_url)
    return found
