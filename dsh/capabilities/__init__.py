"""The built-in plugins, one folder or module each, started in this order by the same call as a third party's.

Each joins through the registries and hooks of the layers below and imports no other capability, so taking a
line away leaves the rest working.
"""

from __future__ import annotations

BUILTIN: tuple[str, ...] = (
    "dsh.tools.policies",
    "dsh.capabilities.retry",
    "dsh.capabilities.fs",
    "dsh.capabilities.fs_search",
    "dsh.capabilities.bash",
    "dsh.capabilities.todo",
    "dsh.capabilities.limits",
    "dsh.capabilities.session_query",
    "dsh.capabilities.titles",
    "dsh.capabilities.references",
)
