"""Who is stopped in a recovery for so long that another run takes over removes nothing of its."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tests.unit.test_bucket_commit import C0, staged
from tests.unit.test_inner_runs import INNER, WHOLE, crashed, site, write
from tune_sync import layout
from tune_sync.buckets.bucket import ObjectInfo
from tune_sync.errors import LeaseLostError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.bucket.lease import BucketLease
from tune_sync.homes.bucket.staging import Order
from tune_sync.homes.home import LocalHome
from tune_sync.homes.inner_runs import note_inner
from tune_sync.homes.sites import LocalSite, RunLease, Site
from tune_sync.homes.store import LocalStore
from tune_sync.run import Run
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.tidying import tidy

__all__ = ["site"]  # a fixture

NEXT = "trial/checkpoint_000007"
Leases = list[RunLease]
# Where it is stopped: a verb, and how the key begins.
STOPS = [
    ("read", layout.STAGING_DIR),
    ("list", layout.TRASH_DIR),
    ("remove_tree", layout.INTERNAL_DIR),
]


@pytest.fixture
def leases() -> Iterator[Leases]:
    """Those that were taken: they are given back after the test."""
    taken: Leases = []
    yield taken
    for lease in taken:
        lease.release()


def took_over(lease: RunLease, leases: Leases) -> None:
    """Take a lease whose holder is silent for so long."""
    lease.acquire(may_take=lambda holder: True)
    leases.append(lease)


class StoppedStore(LocalStore):
    """Goes on with a call only when something else has happened."""

    def __init__(self, root: Path, stop: tuple[str, str], meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self._at, self._meanwhile = stop, [meanwhile]

    def read(self, key: str, *args: Any) -> bytes:
        self._stop("read", key)
        return super().read(key, *args)

    def list(self, key: str) -> Any:
        self._stop("list", key)
        return super().list(key)

    def remove_tree(self, key: str) -> None:
        self._stop("remove_tree", key)
        super().remove_tree(key)

    def _stop(self, verb: str, key: str) -> None:
        if self._at[0] == verb and key.startswith(self._at[1]) and self._meanwhile:
            self._meanwhile.pop()()


class StoppedSite(LocalSite):
    """An experiment directory whose recovery is stopped once, while the next run begins.

    Attributes:
        next_home: That of the next run, which has staged a whole checkpoint by then.
        attempt: Of that checkpoint.
        incoming: A file of that run on its way.
    """

    next_home: LocalHome
    attempt = incoming = ""

    def __init__(self, root: Path, stop: tuple[str, str], leases: Leases) -> None:
        super().__init__(root)
        self._stop, self._leases = stop, leases

    def home(self, owner: str, checkpoint_depth: int) -> LocalHome:
        home = super().home(owner, checkpoint_depth)
        home.store = StoppedStore(self.root, self._stop, self.take_over)
        home.committer.store = home.store
        return home

    def take_over(self) -> None:
        took_over(self.lease("next"), self._leases)
        self.next_home = LocalHome(self.root, "next")
        self.attempt = sealed(self.next_home.committer, {"model": b"1"}, NEXT)
        self.incoming = self.next_home.begin_file()
        self.next_home.write(self.incoming, 0, b"state")


def resume(site: Site) -> None:
    Run.open(site, "resume", 30.0, 1)


@pytest.mark.parametrize("act", [tidy, resume])
@pytest.mark.parametrize("stop", STOPS)
def test_the_next_run_keeps_what_it_has_staged(
    tmp_path: Path, act: Callable[[Site], Any], stop: tuple[str, str], leases: Leases
) -> None:
    site = StoppedSite(tmp_path / "exp", stop, leases)
    site.prepare()
    (site.root / "experiment_state-1.json").write_text(json.dumps({"trial_data": []}))
    home = LocalHome(site.root)
    sealed(home.committer, {"half": b"1"})
    home.begin_file()
    home.store.make_dir(f"{layout.TRASH_DIR}/left")
    with pytest.raises(LeaseLostError, match="no longer owned by this run"):
        act(site)
    site.next_home.commit_file(site.incoming, "experiment_state-2.json", True)
    site.next_home.publish(NEXT, False, [site.attempt])
    assert (site.root / NEXT / "model").read_bytes() == b"1"


def test_a_manifest_of_the_next_run_is_not_taken_for_one_that_was_forgotten(
    tmp_path: Path, leases: Leases
) -> None:
    site = StoppedSite(tmp_path / "exp", ("list", layout.MANIFESTS_DIR), leases)
    site.prepare()
    home = LocalHome(site.root)
    home.publish(CHECKPOINT, False, [sealed(home.committer, {"model": b"1"})])
    home.store.remove_tree(CHECKPOINT)
    with pytest.raises(LeaseLostError):
        tidy(site)
    assert home.store.info(layout.manifest_key(CHECKPOINT)) is not None


# Trainers inside of trials


def test_what_a_trainer_left_is_recovered_under_the_lease_of_its_run(
    site: Site, leases: Leases
) -> None:
    crashed(site)
    took_over(site.lease("me"), leases)
    with pytest.raises(LeaseLostError, match="no longer owned by this run"):
        site.inside(INNER).home("other", 0).committer.recover()
    assert site.inside(INNER).home("me", 0).committer.recover().completed == (WHOLE,)


def test_the_trainer_of_the_next_run_keeps_what_it_has_staged(
    tmp_path: Path, leases: Leases
) -> None:
    class Stopped(LocalSite):
        def inside(self, key: str) -> Site:
            found = super().inside(key)
            took_over(self.lease("next"), leases)
            write(found.home("next", 0), NEXT.partition("/")[2], is_sealed=True)
            return found

    site = Stopped(tmp_path / "exp")
    site.prepare()
    note_inner(site.home("", 1), INNER)
    with pytest.raises(LeaseLostError):
        tidy(site)
    inner = LocalHome(tmp_path / "exp" / INNER, "", 0)
    assert inner.store.list(f"{layout.STAGING_DIR}/{NEXT.partition('/')[2]}") != []


# In a bucket


class StoppedBucket(MemoryBucket):
    """A listing is answered only when something else has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.at = ""
        self.meanwhile: Callable[[], None] | None = None

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = super().list(prefix)
        if prefix == self.at and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return found


@pytest.mark.parametrize("at", [C0, f"{layout.STAGING_DIR}/{C0}"])
def test_in_a_bucket_the_next_run_keeps_what_it_has_published(at: str, leases: Leases) -> None:
    bucket = StoppedBucket()
    staged(BucketCommitter(bucket, "dead"), {"x": b"half"})
    later = BucketHome(bucket, "next", 1).committer

    def take_over() -> None:
        took_over(BucketLease(bucket, "next"), leases)
        later.recover()
        later.record(later.place(C0, attempts=[staged(later, {"x": b"whole"})]).manifest)

    took_over(BucketLease(bucket, "stopped"), leases)
    bucket.at, bucket.meanwhile = at, take_over
    with pytest.raises(LeaseLostError):
        BucketHome(bucket, "stopped", 1).committer.recover()
    assert later.manifest(C0) is not None and bucket.get(f"{C0}/x") == b"whole"


def test_in_a_bucket_what_it_publishes_anew_is_no_late_writers(leases: Leases) -> None:
    bucket = StoppedBucket()
    dead = BucketCommitter(bucket, "dead")
    attempt = staged(dead, {"x": b"1"})
    staged(dead, {"late": b"2"})
    dead._publish(Order(dead.place(C0, attempts=[attempt]).manifest, attempts=(attempt,)),
                  dead._staged(C0)[C0])  # fmt: skip
    later = BucketHome(bucket, "next", 1).committer

    def take_over() -> None:
        took_over(BucketLease(bucket, "next"), leases)
        later.retire(C0)
        later.record(later.place(C0, attempts=[staged(later, {"y": b"3"})]).manifest)

    took_over(BucketLease(bucket, "stopped"), leases)
    bucket.at, bucket.meanwhile = C0, take_over
    with pytest.raises(LeaseLostError):
        BucketHome(bucket, "stopped", 1).committer.recover()
    assert bucket.get(f"{C0}/y") == b"3"
