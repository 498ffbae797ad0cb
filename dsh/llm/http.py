"""The one place that makes HTTP clients, and the client every provider request goes through.

httpx is the second largest cost of starting a run, so it is imported here, when the first client is made, and
without its optional parts (dsh.core.lean).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from dsh.core import lean

if TYPE_CHECKING:
    import ssl

    import httpx as httpx_module


_KEEP_SECONDS = 60.0  # how long a step's tools may take before its connection is given up


def _context(base_url: str) -> ssl.SSLContext:
    """The TLS settings for one server. Loading the certificate store takes longer than a loopback request, so
    a plain-text URL that no TLS proxy stands before gets an empty context, which trusts nobody."""
    from urllib.request import getproxies  # pulls in half of the standard library's HTTP, which httpx needs anyway

    proxies = getproxies()
    if base_url.startswith("https:") or any(v.startswith("https:") for v in proxies.values()):
        import httpx

        return httpx.create_ssl_context()
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(base_url: str) -> httpx_module.AsyncClient:
    """A client for one server: no timeouts of its own, no redirects, proxies from the environment (LS-59).

    Connections are kept where opening one costs a TLS handshake. Servers without TLS are near, and llama.cpp closes
    after a streamed answer while announcing keep-alive, so that the next request may meet a dying connection.
    """
    lean.load_httpx()
    import httpx

    return httpx.AsyncClient(
        verify=_context(base_url),
        timeout=None,
        follow_redirects=False,
        trust_env=True,
        limits=httpx.Limits(
            max_connections=None,
            max_keepalive_connections=8 if keeps_connections(base_url) else 0,
            keepalive_expiry=_KEEP_SECONDS,
        ),
    )


def keeps_connections(base_url: str) -> bool:
    """Whether a connection to this server is used again."""
    return base_url.startswith("https:")


def shown(base_url: str) -> str:
    """The URL as messages show it: without a user name or password."""
    parts = urlsplit(base_url)
    if "@" not in parts.netloc:
        return base_url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
