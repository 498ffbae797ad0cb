"""The one place that makes HTTP clients, and the client every provider request goes through.

httpx is the second largest cost of starting a run, so it is imported here, when the first client is made, and
without its optional parts (dsh.core.lean).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from dsh.core import lean

if TYPE_CHECKING:
    import ssl

    import httpx as httpx_module


T = TypeVar("T")

_KEEP_SECONDS = 60.0  # how long a step's tools may take before its connection is given up


def _tls_proxy() -> bool:
    """Whether the environment names a proxy that is talked to in TLS."""
    from urllib.request import getproxies  # half of the standard library's HTTP; httpx has imported it by now

    return any(proxy.startswith("https:") for proxy in getproxies().values())


def _trusting() -> ssl.SSLContext:
    """The usual TLS settings, with the certificates that httpx would take, too."""
    import ssl

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def _trusting_nobody() -> ssl.SSLContext:
    """For a connection without TLS, so that it does not wait for certificates to be read."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _meanwhile(make: Callable[[], T]) -> Callable[[], T]:
    """Begin `make()` in a thread; the function that is returned waits for it and gives its result, or raises."""
    done: list[T] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            done.append(make())
        except Exception as error:  # noqa: BLE001 - raised again where the result is wanted
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> T:
        thread.join()
        if failed:
            raise failed[0]
        return done[0]

    return result


def client(base_url: str) -> httpx_module.AsyncClient:
    """A client for one server: no timeouts of its own, no redirects, proxies from the environment (LS-59).

    Connections are kept where opening one costs a TLS handshake. Servers without TLS are near, and llama.cpp closes
    after a streamed answer while announcing keep-alive, so that the next request may meet a dying connection.
    """
    # OpenSSL reads certificates for as long as httpx takes to be imported, and needs no interpreter for it
    begun = _meanwhile(_trusting) if base_url.startswith("https:") else None
    lean.load_httpx()
    import httpx

    context = begun or (_trusting if _tls_proxy() else _trusting_nobody)

    return httpx.AsyncClient(
        verify=context(),
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
