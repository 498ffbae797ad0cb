"""Lean imports: what they leave out at first, and that all of it works later."""

from __future__ import annotations

import subprocess
import sys

ABSENT = """
import sys
from dsh.core import lean
lean.load_click(), lean.load_httpx()
import click, httpx, trio
names = ["uuid", "ctypes", "anyio", "trio._dtls", "httpx._main", "httpcore._sync", "certifi.core", "email.utils"]
print([name for name in names if name in sys.modules])
"""

LATER = """
import sys, types
from dsh.core import lean
lean.load_click(), lean.load_httpx()
import ctypes.util, ssl, uuid
import certifi, click, httpcore, httpx, trio

assert isinstance(ctypes, types.ModuleType) and ctypes.CDLL(None) and ctypes.util.find_library("c")
assert certifi.where().endswith(".pem")

convert = click.UUID.convert
assert convert("0" * 32, None, None) == uuid.UUID(int=0) and convert(uuid.UUID(int=1), None, None).int == 1
from urllib.request import HTTPSHandler, Request, build_opener
import urllib.error
try:
    build_opener().open("http://127.0.0.1:1/")
except urllib.error.URLError:
    pass
try:
    build_opener().open("https://127.0.0.1:1/")
except urllib.error.URLError:
    pass
import http.client
assert http.client.HTTPSConnection.default_port == 443 and sys.modules["http.client"] is http.client
import email.message
assert email.message.Message().get_content_type() == "text/plain"
assert httpx.Response(200, headers={"content-type": "text/plain; charset=latin-1"}, content=b"abc").text == "abc"
assert isinstance(http.client.HTTPSConnection, type) and http.client.HTTP_PORT == 80

try:
    convert("no", None, None)
except click.BadParameter:
    pass

with httpx.Client() as client, httpcore.ConnectionPool():
    try:
        client.get("http://127.0.0.1:1/")
    except httpx.ConnectError:
        pass
httpx.create_ssl_context()

async def main():
    assert await trio.to_thread.run_sync(lambda: 1) == 1  # a worker thread starts without a name of its own
    async with httpx.AsyncClient() as client:
        try:
            await client.get("https://127.0.0.1:1/")
        except httpx.ConnectError:
            pass

trio.run(main)
from trio._dtls import DTLSEndpoint
assert isinstance(DTLSEndpoint, type)
print("fine")
"""

FROM = """
from dsh.core import lean
lean.load_httpx()
from http.client import HTTPSConnection
class Mine(HTTPSConnection): pass
print("fine")
"""

WHOLE = """
import click, httpx, trio
before = httpx.Client, trio.DTLSEndpoint, click.UUID
from dsh.core import lean
lean.load_click(), lean.load_trio(), lean.load_httpx()
assert before == (httpx.Client, trio.DTLSEndpoint, click.UUID) and isinstance(trio.DTLSEndpoint, type)
print("fine")
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_no_run_needs_is_not_imported() -> None:
    assert run(ABSENT) == "[]"


def test_what_was_left_out_works_later() -> None:
    assert run(LATER) == "fine"
    assert run(FROM) == "fine"


def test_a_library_that_is_there_is_left_alone() -> None:
    assert run(WHOLE) == "fine"
