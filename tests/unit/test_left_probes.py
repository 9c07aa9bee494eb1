"""A look at a directory before training leaves nothing there, also if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tune_sync.behind.staging_roots import trouble_of
from tune_sync.homes.shared import site
from tune_sync.homes.shared.site import check_abilities

TIMEOUT_S = 250.0
KILLED = """
import fcntl, os, signal, sys
from pathlib import Path
from tune_sync.homes.shared.site import check_abilities
fcntl.flock = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
check_abilities(Path(sys.argv[1]))
"""


def killed(at: Path) -> Path:
    """What is left in a directory by a look that was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(at)], timeout=TIMEOUT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = at.iterdir()
    return left


def test_what_a_killed_one_left_goes_at_the_next_start(tmp_path: Path) -> None:
    left = killed(tmp_path)
    assert any(left.iterdir())
    check_abilities(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_may_be_in_use_elsewhere_stays_for_an_hour(tmp_path: Path) -> None:
    elsewhere = tmp_path / f"{site.PROBE}of_another_host"
    elsewhere.mkdir()
    check_abilities(tmp_path)
    assert elsewhere.exists()
    long_ago_s = time.time() - site.PROBE_AGE_S - 60
    os.utime(elsewhere, (long_ago_s, long_ago_s))
    check_abilities(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "new/staging"])
def test_a_look_at_staging_makes_nothing_that_a_kill_could_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    for removes in ("rmdir", "unlink", "remove"):  # as if it were killed just before
        monkeypatch.setattr(os, removes, lambda *args, **named: None)
    assert trouble_of(str(tmp_path / below)) is None
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
