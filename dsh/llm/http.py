"""The one place that imports httpx, and the client every provider request goes through.

Importing httpx is the largest single cost of starting a run, and much of it is not for us: its command line
(`_main` pulls rich and pygments where they are installed) and httpcore's anyio backend, used under asyncio
only. Both are optional to their libraries, which catch the ImportError; for the time of the import they are
made unimportable. If something else has imported httpx or httpcore before, nothing is hidden. Where rich is
installed this halves the import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies

if TYPE_CHECKING:
    import ssl

    import httpx as httpx_module

_OPTIONAL = ("httpx._main", "anyio")


def load() -> None:
    """Import httpx without its optional parts; later imports find it ready."""
    if "httpx" in sys.modules or "httpcore" in sys.modules:
        return
    import trio  # noqa: F401  (httpcore looks for it; without anyio it is the only backend)

    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # None is how an import is made to fail
    try:
        import httpcore  # noqa: F401  (httpx imports it on first use, which would be after the hiding)
        import httpx  # noqa: F401
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def _context(base_url: str) -> ssl.SSLContext:
    """The TLS settings for one server. Loading the certificate store takes longer than a loopback request, so
    a plain-text URL that no TLS proxy stands before gets an empty context, which trusts nobody."""
    proxies = getproxies()
    if base_url.startswith("https:") or any(v.startswith("https:") for v in proxies.values()):
        import httpx

        return httpx.create_ssl_context()
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(base_url: str) -> httpx_module.AsyncClient:
    """A client for one server: no timeouts of its own, no redirects, proxies from the environment (LS-59)."""
    load()
    import httpx

    return httpx.AsyncClient(verify=_context(base_url), timeout=None, follow_redirects=False, trust_env=True)


def shown(base_url: str) -> str:
    """The URL as messages show it: without a user name or password."""
    parts = urlsplit(base_url)
    if "@" not in parts.netloc:
        return base_url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
