"""Eight writers and four readers on one file: no error, no lost event, a sound file (`scripts/bench concurrency`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.lib.bench_concurrency import measure


@pytest.mark.slow
@pytest.mark.rule("PE-9", "PE-15", "PE-70", "PE-71")
def test_eight_writers_and_four_readers(tmp_path: Path) -> None:
    found = measure(tmp_path / "dsh.db", 1.5, 8, 4, "")
    assert found.rate > 0
    assert found.least > 0  # nobody was kept out
    assert found.reads > 0
