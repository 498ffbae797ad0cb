"""References: sessions that a message quotes. `References` is the service; people reach it by `dsh run --ref` and by
mentions in a prompt, plugins through the host."""

from __future__ import annotations

from dsh.capabilities.references.service import References
from dsh.kernel.scope import Context
from dsh.session.sessions import Sessions


def setup(ctx: Context) -> None:
    ctx.provide(References, References(ctx.host, ctx.get(Sessions)))
