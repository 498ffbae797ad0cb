"""dsh, the DeepSeek Harness: an agent for the shell whose sessions live in one SQLite file.

Nothing is imported here: `dsh --version` and `dsh search` must not pay for what they do not use.
"""

from __future__ import annotations

__version__ = "0.1.0"
