"""A driver whose results are mirrored, killed at random moments: what is at the mirror restores."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.crash import mirror_for_ever
from tests.manifests import manifests_of
from tune_sync import fetch_experiment
from tune_sync.homes.commit import Committer
from tune_sync.homes.recorded import is_whole
from tune_sync.homes.store import LocalStore

KILL_COUNT = 12
MOST_STEPS = 12
LONGEST_REST_S = 0.1


def test_what_is_at_the_mirror_restores_whenever_the_driver_is_killed(tmp_path: Path) -> None:
    dice = random.Random(7)
    home, remote, fetched = tmp_path / "home/x", tmp_path / "remote/x", 0
    for life in range(KILL_COUNT):
        _live(home, remote, dice.randint(1, MOST_STEPS), dice.uniform(0.0, LONGEST_REST_S))
        copy = tmp_path / f"copy-{life}/x"
        try:
            fetch_experiment(remote, copy, mirror_for_ever.syncer())
        except FileNotFoundError:  # killed before any state was there
            assert not fetched
            continue
        fetched += 1
        _check(copy)
        if dice.random() < 0.3:  # the driver's disk is lost too
            home = copy
    assert fetched > KILL_COUNT // 2


def _live(home: Path, remote: Path, steps: int, rest_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, mirror_for_ever.__file__, str(home), str(remote)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    for _ in range(steps):
        assert process.stdout.readline()
    time.sleep(rest_s)
    process.kill()
    process.stdout.close()
    process.wait()


def _check(copy: Path) -> None:
    store = LocalStore(copy)
    named = json.loads((copy / mirror_for_ever.STATE).read_text())["named"]
    manifests = {m.checkpoint: m for m in manifests_of(Committer(store))}
    assert set(named) <= set(manifests)
    assert {p.relative_to(copy).as_posix() for p in copy.glob("trial/checkpoint_*")} == set(
        manifests
    )
    for checkpoint, manifest in manifests.items():
        assert is_whole(store, manifest)
        number = int(checkpoint[-6:])
        for name in ("a", "sub/b"):
            assert (copy / checkpoint / name).read_bytes() == f"{number} {name} ".encode() * 1_500
    assert Committer(store).recover().dropped == ()
