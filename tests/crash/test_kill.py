"""A real process on a real disk, killed at random moments."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import xxhash

from tests.crash import publish_for_ever
from tests.crash.invariants import check_clean, tree
from tests.manifests import manifests_of
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore

KILL_COUNT = 20
# How far a process gets is counted in its promises: in seconds it would depend on the machine.
MOST_PROMISES = 25
LONGEST_REST_S = 0.02


def test_a_process_killed_at_any_moment_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    dice = random.Random(20)
    recorded_count = 0
    for _ in range(KILL_COUNT):
        promises_count, rest_s = dice.randint(1, MOST_PROMISES), dice.uniform(0.0, LONGEST_REST_S)
        promises = _life(tmp_path, promises_count, rest_s)
        recorded_count += sum(what == "recorded" for what, _ in promises)
        _check_visible(tmp_path)
        _check_state(tmp_path)
        Committer(LocalStore(tmp_path)).recover()
        _check_recovered(tmp_path, promises)
    assert recorded_count > KILL_COUNT


def _life(root: Path, promises_count: int, rest_s: float) -> list[tuple[str, str]]:
    """Let a process give so many promises, and kill it a moment later; what it promised."""
    repository = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, publish_for_ever.__file__, str(root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(promises_count)]
    time.sleep(rest_s)
    process.kill()
    lines = [*first, *process.stdout.read().splitlines()]
    process.stdout.close()
    process.wait()
    return [tuple(json.loads(line)) for line in lines if line.endswith((b"]", b"]\n"))]


def _check_visible(root: Path) -> None:
    for checkpoint in sorted((root / "trial_a").glob("checkpoint_*")):
        files = {
            p.relative_to(checkpoint).as_posix(): p for p in checkpoint.rglob("*") if p.is_file()
        }
        assert sorted(files) == ["a.bin", "sub/b.bin", "sub/c.bin"], checkpoint
        attempts = set()
        for name, path in files.items():
            unit = path.read_bytes().split(f" {name}".encode(), 1)[0]
            assert path.read_bytes() == (unit + f" {name}".encode()) * 2_000, path
            attempts.add(unit)
        assert len(attempts) == 1, f"{checkpoint} mixes {attempts}"


def _check_state(root: Path) -> None:
    if (root / "experiment_state.json").exists():
        for checkpoint in json.loads((root / "experiment_state.json").read_text()):
            assert (root / checkpoint / "sub/c.bin").exists(), f"state names absent {checkpoint}"


def _check_recovered(root: Path, promises: list[tuple[str, str]]) -> None:
    store = LocalStore(root)
    _check_visible(root)
    _check_state(root)
    check_clean(store)
    manifests = {manifest.checkpoint: manifest for manifest in manifests_of(Committer(store))}
    for checkpoint, manifest in manifests.items():
        found = {path: data for path, data in tree(store, checkpoint).items() if data is not None}
        assert {f.path: f.digest for f in manifest.files} == {
            path: xxhash.xxh3_128_hexdigest(data) for path, data in found.items()
        }
    retiring = {value for what, value in promises if what == "retiring"}
    kept = {value for what, value in promises if what in ("placed", "recorded")} - retiring
    assert kept <= set(manifests)
    before = tree(store, "")
    assert not Committer(store).recover().completed
    assert tree(store, "") == before
