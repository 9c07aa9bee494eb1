"""Which processes are surely gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.hosts.searches import wait_for
from tune_sync.process import has_ended, start_of

# Its main thread ends, and another one goes on.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_one_that_was_killed_is_gone_before_its_parent_asks_for_it() -> None:
    child = subprocess.Popen(["sleep", "600"])
    start = start_of(child.pid)
    try:
        assert start and not has_ended(child.pid, start)
    finally:
        child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert start_of(child.pid) == start
    assert has_ended(child.pid, start)
    child.wait()
    assert has_ended(child.pid, start)


def test_one_whose_main_thread_has_ended_goes_on_with_its_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", HEADLESS])
    start, stat = start_of(child.pid), Path(f"/proc/{child.pid}/stat")
    try:
        wait_for(lambda: ") Z " in stat.read_text(), "the end of its main thread")
        assert not has_ended(child.pid, start)
    finally:
        child.kill()
        child.wait()
