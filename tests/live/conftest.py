"""Fixtures for tests against a real language model."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.local_model import shared_server


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL (`http://127.0.0.1:PORT/v1`) of a real model server; one for all workers of a run.

    The first run downloads the model (126 MB). It works on one request at a time: allow 60 s for a turn.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the run's own, shared by its workers
    with shared_server(folder) as url:
        yield url
