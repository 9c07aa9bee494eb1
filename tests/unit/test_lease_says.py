"""What a refusal says where a lease tells nothing of use: clocks are apart, or it has gone."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.clock import Clock
from tune_sync import cleanup, status
from tune_sync.behind.duty import check_dead
from tune_sync.errors import LeaseHeldError, LeaseLostError
from tune_sync.homes.bucket.lease import BucketLease
from tune_sync.homes.lease import CLOCKS_DIFFER_S, Holder, Lease, read_holder
from tune_sync.homes.sites import LocalSite, make_way
from tune_sync.layout import INTERNAL_DIR, LEASE_KEY
from tune_sync.run import Run
from tune_sync.testing.memory_bucket import MemoryBucket

TIMEOUT_S = 20.0
YEARS_S = 50 * 365 * 24 * 3600.0
OTHER = Holder("other", "far", 12, "another machine", "345", 0.0)
SAYS = "12 on host far.*{} s ahead of the clock here.*no driver runs there, remove {}, and try"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Run.open(tmp_path / "exp", "error", TIMEOUT_S, 1).close()
    (tmp_path / "exp" / "experiment_state-2026.json").write_text('{"trial_data": []}')
    return tmp_path / "exp"


def held(root: Path, ahead_s: float) -> bytes:
    """Have a run elsewhere hold the lease."""
    made = replace(OTHER, heartbeat_s=time.time() + ahead_s).to_json()
    (root / LEASE_KEY).write_text(made)
    return made.encode()


def test_a_heartbeat_of_years_ahead_is_nothing_to_wait_for(root: Path) -> None:
    lease = held(root, YEARS_S)
    starts = (
        lambda: cleanup(root),
        lambda: Run.open(root, "resume", TIMEOUT_S, 1),
        lambda: make_way(LocalSite(root), "move_aside", "", lambda holder: False),
    )
    for start in starts:
        with pytest.raises(LeaseHeldError, match=SAYS.format("15768000.+", root / LEASE_KEY)) as no:
            start()
        assert "wait" not in str(no.value) and "last heard" not in str(no.value)
        assert (root / LEASE_KEY).read_bytes() == lease
    assert re.search(r"running, process 12 .* heard of 1576.+ s ahead of the", str(status(root)))
    (root / LEASE_KEY).unlink()
    cleanup(root)


def test_clocks_that_may_differ_so_are_waited_for(tmp_path: Path) -> None:
    clock, bucket = Clock(), MemoryBucket()
    (tmp_path / INTERNAL_DIR).mkdir()
    for ahead_s in (CLOCKS_DIFFER_S, CLOCKS_DIFFER_S + 1):
        lease = replace(OTHER, heartbeat_s=clock.now_s + ahead_s).to_json()
        (tmp_path / LEASE_KEY).write_text(lease)
        bucket.put(LEASE_KEY, lease.encode())
        for where, taken in (
            (tmp_path, Lease(tmp_path, "me", clock)),
            ("s3://b/exp", BucketLease(bucket, "me", clock, where="s3://b/exp")),
        ):
            says = r"wait (90|150) s"
            if ahead_s > CLOCKS_DIFFER_S:
                says = SAYS.format(f"{ahead_s:.0f}", f"{where}/{LEASE_KEY}")
            with pytest.raises(LeaseHeldError, match=says):
                taken.acquire()
    assert read_holder(tmp_path / LEASE_KEY) is not None


def test_a_node_says_the_same_of_it() -> None:
    lease = replace(OTHER, heartbeat_s=YEARS_S).to_json().encode()
    with pytest.raises(LeaseHeldError, match=SAYS.format(f"{YEARS_S - 1:.0f}", f"/x/{LEASE_KEY}")):
        check_dead("/x", lease, 1.0)


@pytest.mark.parametrize("gone", ["the directory", "ours", "the lease"])
def test_a_directory_that_is_not_there_any_more_is_owned_by_nobody_else(
    root: Path, gone: str
) -> None:
    lease = Lease(root, "me")
    lease.acquire()
    if gone == "the lease":
        (root / LEASE_KEY).unlink()
    else:
        shutil.rmtree(root if gone == "the directory" else root / INTERNAL_DIR)
    with pytest.raises(LeaseLostError, match="no longer owned by this run") as lost:
        lease.check()
    has_gone = "what is mounted there, has gone" in str(lost.value)
    assert (has_gone, "by nobody" in str(lost.value)) == (gone != "the lease", gone == "the lease")
    lease.release()
