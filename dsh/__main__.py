"""`python -m dsh`: the same program as the `dsh` command."""

from __future__ import annotations

from dsh.cli.main import run

if __name__ == "__main__":
    run()
