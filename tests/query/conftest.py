from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.session.kit import World, world


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    opened = world(tmp_path / "dsh.db")
    yield opened
    opened.db.close()
