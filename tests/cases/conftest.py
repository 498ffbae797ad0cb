"""A server and a program for the cases: each is a bug that other tools had, replayed on the real `dsh`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider import FakeProvider
from tests.shell.process import Dsh


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as server:
        yield server


@pytest.fixture
def dsh(tmp_path: Path, fake: FakeProvider) -> Dsh:
    return Dsh(tmp_path, fake, DSH_RETRY_INITIAL_DELAY_MS="1", DSH_RETRY_MAX_DELAY_MS="2")
