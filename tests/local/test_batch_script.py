"""The script of the page on batch systems, as these treat it: stopped, killed, run again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.searches import wait_for
from tests.local.own_ray import own_ray
from tests.meta.blocks import blocks_of
from tests.meta.repo import ROOT

# Ray is started three times.
pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/howto/batch-systems.md"
TRIALS_COUNT, STEPS_COUNT = 2, 24
WAIT_S = 90.0


def script() -> str:
    """What the page shows, with steps that take time."""
    (block,) = blocks_of(PAGE)
    steps, first = "range(first, 3):\n", "        with tempfile"
    assert block.source.count(steps + first) == 1
    longer = f"range(first, {STEPS_COUNT}):\n        time.sleep(0.4)\n{first}"
    return block.source.replace(steps + first, longer)


def test_it_ends_soon_when_it_is_stopped_and_goes_on_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    place = tmp_path / "results/nightly"
    (tmp_path / "nightly.py").write_text(script())

    def stored() -> int:
        return len(list(place.glob(".tune_sync/manifests/*/*.json")))

    log = tmp_path / "log"

    with own_ray() as env, log.open("w") as out:

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "nightly.py"], cwd=tmp_path, env={**env, "HOME": str(tmp_path)},
                text=True, stdout=out, stderr=subprocess.STDOUT,  # a pipe would wait for Ray's end
            )  # fmt: skip

        for number, status in ((signal.SIGTERM, 1), (signal.SIGKILL, -signal.SIGKILL)):
            job, enough = start(), stored() + 4
            wait_for(lambda more=enough: stored() >= more, "checkpoints", WAIT_S)
            job.send_signal(number)
            assert job.wait(WAIT_S) == status, log.read_text()
        assert stored() < TRIALS_COUNT * STEPS_COUNT
        assert start().wait(WAIT_S) == 0, log.read_text()
    assert "resuming what is there" in log.read_text()
    assert stored() == TRIALS_COUNT * STEPS_COUNT
