"""Which files a session has seen, and in which version: read before you replace (FS-51 to FS-57).

Kept in memory for the life of the process. A session that is resumed by another process starts without
observations, which costs it one more read of a file it wants to change and can never let an outdated version
pass.
"""

from __future__ import annotations

from dsh.capabilities.fs.errors import FsError
from dsh.capabilities.fs.local import Target, WriteIntent
from dsh.tools.definition import Agent, Session


class Observations:
    """Owner (the calling agent's session) to target to version. One session's never authorise another
    (FS-55)."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, str]] = {}

    def record(self, agent: Agent | None, target: Target, version: str) -> None:
        """Note a version just read or made; without a session there is nothing to note (FS-54, FS-57)."""
        if agent is not None:
            self._seen.setdefault(agent.session.id, {})[target.key] = version

    def write_intent(self, agent: Agent | None, target: Target) -> WriteIntent:
        """Replace the version seen, or create what must not exist yet (FS-52, FS-56)."""
        return WriteIntent(self._version(agent, target))

    def edit_version(self, agent: Agent | None, target: Target) -> str:
        """The version an edit is bound to; FS_NOT_OBSERVED if this session has not seen the file (FS-53)."""
        version = self._version(agent, target)
        if version is None:
            raise FsError(f"{target.display} must be read before it can be edited", "FS_NOT_OBSERVED")
        return version

    def forget(self, session: Session) -> None:
        self._seen.pop(session.id, None)

    def _version(self, agent: Agent | None, target: Target) -> str | None:
        return None if agent is None else self._seen.get(agent.session.id, {}).get(target.key)
