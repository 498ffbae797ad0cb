"""Fixtures for every test: a home of its own, no key of the developer's, async tests under trio."""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

_PRIVATE = ("_API_KEY", "_BASE_URL")


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the developer's home, configuration, keys or database."""
    for name in list(os.environ):
        if (name.startswith("DSH_") and name != "DSH_FIXTURES") or name.endswith(_PRIVATE):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("DSH_DB", str(tmp_path / "dsh.db"))
    monkeypatch.setenv("DSH_LLM_DISCOVER", "false")
    monkeypatch.setenv("DSH_CHECK", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests under trio."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    import trio

    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    trio.run(functools.partial(function, **arguments), strict_exception_groups=True)
    return True


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of recorded provider streams; in CI a missing one is a failure, elsewhere a skip."""
    folder = Path(os.environ.get("DSH_FIXTURES") or Path(__file__).parent.parent.parent / "shared" / "fixtures")
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"no recorded streams at {folder}")
        pytest.skip(f"no recorded streams at {folder}; set DSH_FIXTURES")
    return folder
