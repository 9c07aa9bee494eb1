"""The demo is not silent for long: it says what it waits for."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from examples import demo
from examples.demo_parts.names import LOST
from examples.demo_parts.waiting import Waiting
from tests.meta.repo import ROOT

QUIET_S = 0.2


def test_a_silence_is_filled_with_what_is_waited_for_and_talk_is_not_disturbed() -> None:
    lines: list[str] = []
    told = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        waiting.heard()
        told.set()

    waiting = Waiting(tell, QUIET_S)
    waiting.waits_for("Ray")
    with waiting:
        assert told.wait(30)
        waiting.waits_for("trials")
        told.clear()
        assert told.wait(30)
    assert lines[0] == "... waiting for Ray"
    assert lines[-1] == "... waiting for trials"

    lines.clear()
    talks_s: list[tuple[float, float]] = []  # when each began and ended
    with Waiting(lines.append, 10 * QUIET_S) as patient:
        for _ in range(30):
            began_s = time.monotonic()
            patient.heard()
            talks_s.append((began_s, time.monotonic()))
            time.sleep(QUIET_S / 2)
    talks_s.append((0.0, time.monotonic()))
    # A busy machine may be silent for that long itself.
    longest_s = max(ended_s - began_s for (began_s, _), (_, ended_s) in pairwise(talks_s))
    assert lines == [] or longest_s >= 10 * QUIET_S


class _Hosts:
    """Stands in for the demo's: a search that has printed these lines."""

    def __init__(self, *lines: str) -> None:
        self.stdout, self.returncode = [f"{line}\n" for line in lines], 0
        self.killed: list[str] = []

    @contextmanager
    def start(self, *_: object) -> Iterator[_Hosts]:
        yield self

    def kill(self, name: str) -> None:
        self.killed.append(name)


def test_what_is_waited_for_after_the_loss_of_a_host_is_true_at_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[str] = []
    monkeypatch.setattr(demo.WAITING, "waits_for", waits.append)
    hosts: Any = _Hosts(
        f"trial 1 on w2: epoch  {demo.KILL_AT_EPOCH}, accuracy 0.900, checkpoint_000005",
        f"trial 1 {LOST}, and queues; last checkpoint: checkpoint_000005",
        "trial 1 resumes on w1 at epoch 6 from checkpoint_000005",
    )
    assert demo.show(hosts, "search", io.StringIO(), kills=True) == 0
    assert hosts.killed == ["w2"]
    assert waits == [
        "Ray to notice that w2 is gone",
        "trials on the other host to end, and the lost ones to begin",
        "the trials that are left",
    ]


def test_the_first_line_does_not_wait_for_ray() -> None:
    look = "import sys, examples.demo; print('ray' in sys.modules or 'sklearn' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.stdout == "False\n", done.stderr
