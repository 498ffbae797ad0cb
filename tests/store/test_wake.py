"""The bell of a driver: it says only "look", nothing waits for it, and nobody needs it."""

from __future__ import annotations

import os
import select
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from dsh.store import wake


def heard(ear: socket.socket, seconds: float = 0.0) -> bool:
    return bool(select.select([ear], [], [], seconds)[0])


@pytest.mark.rule("AL-85")
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_ring_is_heard_once_and_the_bell_is_taken_down(
    platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if sys.platform != "linux" and platform == "linux":
        pytest.skip("there are no names outside of folders here")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holder = os.urandom(8).hex()
    assert not wake.ring(holder)
    ear = wake.listen(holder)
    assert ear is not None
    assert wake.listen(holder) is None  # one driver a token
    assert not heard(ear)
    for _ in range(10_000):  # more than any queue holds; the sender is not held up
        assert wake.ring(holder)
    assert heard(ear, 5)
    wake.heard(ear)
    assert not heard(ear)
    wake.hang_up(ear, holder)
    assert not wake.ring(holder)
    assert not list(tmp_path.glob("dsh-*"))
