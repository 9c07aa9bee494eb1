"""Three nodes on one directory, where each sees late what the others did."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.staged import sealed
from tune_sync import layout
from tune_sync.errors import LeaseLostError, NotSharedError, NotWholeError
from tune_sync.homes import disk
from tune_sync.homes.lease import Lease
from tune_sync.homes.shared.home import SharedHome
from tune_sync.homes.shared.site import SharedSite
from tune_sync.manifest import seal_from_json

Mount = Callable[..., Path]
TICK_S = 0.02  # times of files are as fine as the kernel's ticks
FILES = {"a": b"1", "d/b": b"22" * 5000}


class Nodes:
    """A driver, a node that writes, and one that reads; `hidden_while`: from the driver alone."""

    def __init__(self, mounted: Mount, hidden_while: str = "", **faults: object) -> None:
        driver = {**faults, "hidden_while": hidden_while}
        self.roots = [mounted(**given) / "exp" for given in (driver, faults, faults)]
        site = SharedSite(self.roots[0])
        site.check()
        site.prepare()
        self.lease = site.lease("me")
        self.lease.acquire()
        self.driver = site.home("me", 1)
        self.writer = SharedHome(self.roots[1], "me", 1, "node w1")
        self.reader = SharedHome(self.roots[2], "me", 1, "node w2")

    def sees(self, checkpoint: str, attempt: str) -> bool:
        """Whether the driver sees a part."""
        return self.driver.store.info(layout.seal_key(checkpoint, attempt)) is not None

    def read(self, checkpoint: str) -> dict[str, bytes]:
        assert self.reader.info(checkpoint) is not None
        found = self.reader.list(checkpoint, True)
        top = len(checkpoint) + 1
        return {e.key[top:]: self.reader.read(e.key, 0, 1 << 20) for e in found if not e.is_dir}


@pytest.fixture
def made(mounted: Mount) -> Iterator[Callable[..., Nodes]]:
    def make(**faults: object) -> Nodes:
        nodes = Nodes(mounted, **faults)
        leases.append(nodes.lease)
        return nodes

    leases: list[Lease] = []
    yield make
    for lease in leases:
        lease.release()


def test_ten_checkpoints_pass_where_all_that_can_be_missing_is(made: Callable[..., Nodes]) -> None:
    nodes = made(
        delay_s=0.5, no_fsync=True, no_links=True, stale=True, held_open=True,
    )  # fmt: skip
    for number in range(10):
        checkpoint = f"trial/checkpoint_{number:06d}"
        attempt = sealed(nodes.writer.committer, FILES, checkpoint)
        placed = nodes.driver.committer.place(checkpoint, attempts=[attempt])
        nodes.driver.committer.record(placed.manifest)
        assert nodes.read(checkpoint) == FILES
        if number:
            nodes.driver.remove(f"trial/checkpoint_{number - 1:06d}")
    assert [entry.key for entry in nodes.driver.list("trial", False)] == [checkpoint]
    recovery = nodes.driver.committer.recover()
    assert (recovery.completed, recovery.dropped) == ((), ())


def test_with_two_seconds_of_delay_nothing_is_taken_for_missing(made: Callable[..., Nodes]) -> None:
    nodes = made(delay_s=2.0)
    checkpoint = "trial/checkpoint_000000"
    attempt = sealed(nodes.writer.committer, FILES, checkpoint)
    placed = nodes.driver.committer.place(checkpoint, attempts=[attempt])
    recording = threading.Timer(1.0, nodes.driver.committer.record, [placed.manifest])
    recording.start()
    assert nodes.read(checkpoint) == FILES
    recording.join()


def test_a_checkpoint_of_which_a_part_never_appears_is_not_read(
    made: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = made()
    checkpoint = "trial/checkpoint_000000"
    attempt = sealed(nodes.writer.committer, FILES, checkpoint)
    nodes.driver.publish(checkpoint, False, [attempt])
    (nodes.roots[0] / checkpoint / "d/b").unlink()
    monkeypatch.setattr(nodes.reader, "_patience_s", 0.3)
    with pytest.raises(NotWholeError, match=r"not all there on node w2: d/b does not appear"):
        nodes.reader.list(checkpoint, True)


def test_the_parts_of_ranks_on_two_nodes_are_put_together(made: Callable[..., Nodes]) -> None:
    nodes = made(delay_s=1.0)
    checkpoint = "trial/checkpoint_000000"
    rank_1 = SharedHome(nodes.roots[2], "me", 1, "node w2")
    attempts = [sealed(nodes.writer.committer, {"a": b"1"}, checkpoint)]
    attempts.append(sealed(rank_1.committer, {"d/b": b"22"}, checkpoint))
    key = layout.seal_key(checkpoint, attempts[1])
    rank_1.seal(checkpoint, replace(seal_from_json(rank_1.store.read(key), key), rank=1))
    nodes.driver.committer.place(checkpoint, attempts=attempts)
    recovery = SharedHome(nodes.roots[0], "me").committer.recover()  # as after a crash
    assert recovery.completed == (checkpoint,)
    assert nodes.read(checkpoint) == {"a": b"1", "d/b": b"22"}


def test_a_part_that_is_seen_too_late_is_never_left_out(
    made: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hides = tmp_path / "hides"
    nodes = made(hidden_while=str(hides))
    checkpoint = "trial/checkpoint_000000"
    rank_1 = SharedHome(nodes.roots[2], "me", 1, "node w2")
    attempts = [sealed(nodes.writer.committer, {"a": b"1"}, checkpoint)]
    rank_1.committer.begin(checkpoint)  # it sees the directory of the checkpoint
    assert nodes.sees(checkpoint, attempts[0])
    time.sleep(TICK_S)
    hides.touch()
    time.sleep(TICK_S)
    attempts.append(sealed(rank_1.committer, {"d/b": b"22"}, checkpoint, rank=1))
    monkeypatch.setattr(disk, "VISIBLE_WITHIN_S", 0.3)
    with pytest.raises(NotWholeError, match=f"parts of {checkpoint} .*{attempts[1]}/seal.json"):
        nodes.driver.committer.place(checkpoint, attempts=attempts)
    assert nodes.driver.store.info(checkpoint) is None
    hides.unlink()
    assert nodes.sees(checkpoint, attempts[1])
    recovery = SharedHome(nodes.roots[0], "me").committer.recover(waits=True)
    assert recovery.completed == (checkpoint,)
    assert nodes.read(checkpoint) == {"a": b"1", "d/b": b"22"}


@pytest.mark.parametrize("late", ["", "/d/b"])
def test_bytes_that_are_seen_after_their_seal_are_waited_for(
    made: Callable[..., Nodes], late: str
) -> None:
    nodes = made()
    checkpoint = "trial/checkpoint_000000"
    attempts = [sealed(nodes.writer.committer, {"a": b"1"}, checkpoint)]
    attempts.append(sealed(nodes.writer.committer, {"d/b": b"22"}, checkpoint))
    key = layout.seal_key(checkpoint, attempts[1])
    nodes.writer.seal(
        checkpoint, replace(seal_from_json(nodes.writer.store.read(key), key), rank=1)
    )
    there = Path(f"{nodes.roots[0]}/{layout.staged_key(checkpoint, attempts[1])}{late}")
    away = nodes.roots[0] / "away"
    there.rename(away)
    appearing = threading.Timer(0.5, away.rename, [there])
    appearing.start()
    nodes.driver.publish(checkpoint, False, attempts)
    appearing.join()
    assert nodes.read(checkpoint) == {"a": b"1", "d/b": b"22"}


def test_a_manifest_whose_checkpoint_is_gone_for_good_is_dropped_after_a_wait(
    made: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "VISIBLE_WITHIN_S", 0.3)
    nodes = made()
    checkpoint = "trial/checkpoint_000000"
    nodes.driver.publish(checkpoint, False, [sealed(nodes.writer.committer, FILES, checkpoint)])
    shutil.rmtree(nodes.roots[0] / checkpoint)
    nodes.driver.committer.recover()
    assert list(nodes.driver.published_keys()) == []


def test_a_checkpoint_that_is_seen_late_keeps_its_manifest(made: Callable[..., Nodes]) -> None:
    nodes = made()
    checkpoint = "trial/checkpoint_000000"
    nodes.driver.publish(checkpoint, False, [sealed(nodes.writer.committer, FILES, checkpoint)])
    there, away = nodes.roots[0] / checkpoint, nodes.roots[0] / "away"
    there.rename(away)
    appearing = threading.Timer(0.5, away.rename, [there])
    appearing.start()
    nodes.driver.committer.recover()
    appearing.join()
    assert list(nodes.driver.published_keys()) == [checkpoint]


def test_the_lease_is_waited_for_by_the_first_who_writes(made: Callable[..., Nodes]) -> None:
    nodes = made(delay_s=1.0)
    assert nodes.writer.begin("trial/checkpoint_000000")


def test_a_run_that_lost_its_lease_stops_and_one_on_an_unmounted_path_is_told_so(
    made: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes = made()
    other = SharedHome(nodes.roots[1], "another run", 1, "node w1")
    nowhere = SharedHome(tmp_path / "nowhere/exp", "me", 1, "node w3")
    for home in (other, nowhere):
        monkeypatch.setattr(home, "_patience_s", 0.3)
    start_s = time.monotonic()
    with pytest.raises(LeaseLostError):
        other.begin("trial/checkpoint_000000")
    assert time.monotonic() - start_s > 0.3
    for call in (lambda: nowhere.begin("trial/checkpoint_000000"), nowhere.check_here):
        with pytest.raises(NotSharedError, match=r"is not visible on node w3.*nowhere has to be"):
            call()
    assert not (tmp_path / "nowhere").exists()
