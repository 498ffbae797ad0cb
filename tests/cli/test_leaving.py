"""How the process ends: at once, but not before what others asked to happen at the end."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, sys, threading, time
from dsh.cli import main

def answer():
    print("answer", flush=True)
    {body}
    return 5

main.main = answer
main.run()
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("{body}", body)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_exit_handlers_run_and_the_code_is_kept() -> None:
    done = run("atexit.register(print, 'handler'); sys.stderr.write('half a line')")
    assert (done.returncode, done.stdout, done.stderr) == (5, "answer\nhandler\n", "half a line")


def test_a_thread_that_python_waits_for_is_waited_for() -> None:
    done = run("threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()")
    assert (done.returncode, done.stdout) == (5, "answer\nthread\n")


def test_a_daemon_thread_is_not() -> None:
    done = run("threading.Thread(target=lambda: (time.sleep(60), print('thread')), daemon=True).start()")
    assert (done.returncode, done.stdout) == (5, "answer\n")
