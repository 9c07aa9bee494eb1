"""The demo is not silent for long: it says what it waits for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise

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


def test_the_first_line_does_not_wait_for_ray() -> None:
    look = "import sys, examples.demo; print('ray' in sys.modules or 'sklearn' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.stdout == "False\n", done.stderr
