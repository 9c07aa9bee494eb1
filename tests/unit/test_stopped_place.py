"""Who is stopped while it places a checkpoint takes none from the run that took over meanwhile."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from tests.unit.staged import CHECKPOINT, sealed
from tune_sync.errors import TuneSyncError
from tune_sync.homes.home import LocalHome
from tune_sync.homes.lease import Lease
from tune_sync.testing.fault_store import ALL_VERBS, Fault, FaultStore


def is_taken_over_at(call: int, root: Path) -> bool:
    """Place a checkpoint, whose next run begins before this call; returns whether it came to it."""
    lease, later = Lease(root, "next"), LocalHome(root, "next")
    completed = list[str]()

    def take_over(delay_s: float) -> None:
        lease.acquire(may_take=lambda holder: True)
        completed.extend(later.committer.recover().completed)

    stopped = Lease(root, "stopped")
    stopped.acquire()
    try:
        committer = LocalHome(root, "stopped").committer
        attempt = sealed(committer, {"model": b"1"}, ranks_count=1)
        stop = Fault(call, verbs=ALL_VERBS, delay_s=1.0)
        committer.store = FaultStore(committer.store, stop, sleep=take_over)
        with suppress(TuneSyncError, OSError):
            committer.place(CHECKPOINT, attempts=[attempt])
        if completed:
            assert later.committer.manifest(CHECKPOINT) is not None, call
            assert (root / CHECKPOINT / "model").read_bytes() == b"1"
    finally:
        stopped.release()
        lease.release()
    return bool(completed)


def test_a_checkpoint_that_the_next_run_has_published_stays(tmp_path: Path) -> None:
    for call in count(1):
        root = tmp_path / str(call)
        root.mkdir()
        if not is_taken_over_at(call, root):
            break
    assert call > 10
