"""The server process of the local model: run as a script by `child`, never imported by the program.

It reads one line of JSON from stdin, starts the engine's OpenAI-compatible HTTP server on a free loopback
port, writes `{"port": N}` as one line to stdout and then lives until stdin ends: whoever holds the other end
of that pipe keeps it alive, however they die. On Linux the kernel ends it with its parent as well, even while
the engine is loading. Its own output goes to stderr, which the parent gives a file whose size is limited
here.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import threading
from typing import Any

_LOG_LIMIT = 1 << 20
_PR_SET_PDEATHSIG = 1
_MAX_TOKENS = 1024


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    _end_with(config["parent"])
    threading.Thread(target=_end_at_eof, daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full log refuses writes, nothing more
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_LIMIT, _LOG_LIMIT))
    announce = os.dup(1)
    os.dup2(2, 1)  # whatever the engine prints is log
    try:
        server = _start(config)
    except (ImportError, RuntimeError) as error:  # the log above it says more than a traceback
        sys.exit(str(error))
    port = int(server.listening_address.rsplit(":", 1)[1])
    _expect_health(port)
    os.write(announce, json.dumps({"port": port}).encode() + b"\n")
    # `announce` stays open: its end tells the parent that this process is gone
    while True:
        signal.pause()


def _end_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies (0: no such bond)."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(0)


def _end_at_eof() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _start(config: dict[str, Any]) -> Any:
    sys.path.insert(0, config["engine"])
    xllamacpp: Any = importlib.import_module("xllamacpp")
    p = xllamacpp.CommonParams()
    p.model.path = config["gguf"]
    p.model_alias = {config["alias"]}
    p.hostnames = ["127.0.0.1"]
    p.port = 0
    p.cors_origins = "http://127.0.0.1"  # no answers to scripts of web pages
    p.ui = False
    p.endpoint_slots = False
    p.offline = True
    p.fit_params = False  # measures GPU memory
    p.n_threads_http = 4
    p.verbosity = 2  # warnings and errors
    p.n_gpu_layers = 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = config["threads"]
    # Memory: one slot, no copies of earlier conversations. Its cache stays at 16 bits (23 kB a token): 8 bits would
    # save 90 MB and halve the speed of long prompts.
    p.n_parallel = 1
    p.n_ctx = config["context"]
    p.cache_ram_mib = 0
    # A model this small repeats itself without end now and then, and gets worse with any randomness.
    p.n_predict = _MAX_TOKENS
    p.sampling.temp = 0.0
    p.use_jinja = True
    p.chat_template = config["template"]
    if config["think"]:
        p.default_template_kwargs = {"show_thinking": "true"}
    return xllamacpp.Server(p)


def _expect_health(port: int) -> None:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    if status != 200:
        sys.exit(f"the server started but its health is {status}")


if __name__ == "__main__":
    main()
