"""`python -m dsh`: the same program as the `dsh` command.

`-m` puts the current folder first on the path, and a repository that one works in may hold a file with the name of a
module that we import. So it is taken off before anything else is imported.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    from dsh.cli.main import run

    run()
