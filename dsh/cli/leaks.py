"""Keys that came into the log in a run: in a prompt, or in what a tool read."""

from __future__ import annotations

from typing import Any

from dsh.core.events import Event
from dsh.core.secrets import find
from dsh.store.functions import document_text

_READ = ("user/message", "steering/message", "tool/result")


class Leaks:
    """Hears the events of a run's session; `kinds` are the kinds of keys that they held, none of the keys."""

    def __init__(self) -> None:
        self.kinds: dict[str, None] = {}

    def heard(self, session: Any, event: Event) -> None:
        if event["type"] in _READ:
            self.kinds.update((kind, None) for _, _, kind in find(document_text(event["type"], event["data"])))

    def notice(self) -> str:
        return (
            f"a prompt or a tool result held a secret ({', '.join(self.kinds)}): the log keeps it, search and exports "
            "mask it, dsh redact --secrets takes it out"
        )
