"""The file that the launchers run: `python -I -S -X utf8 dsh/_boot.py ARGUMENTS`. What it does is in dsh/_start.py:
Python compiles the file it is given anew at every start, and imports a module compiled."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from dsh._start import FLAGS, command, main

__all__ = ["FLAGS", "command", "main"]

if __name__ == "__main__":
    main()
