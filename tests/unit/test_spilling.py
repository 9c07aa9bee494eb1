"""What finds no room on its node's disk goes to the destination, whatever was written till then."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from tests.unit.clock import Clock
from tune_sync import layout
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.spilling_home import SpillingHome
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import StoreFullError, StoreUnreachableError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import Home, LocalHome
from tune_sync.manifest import Seal
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.upload import CheckpointUpload

CHECKPOINT = "t/checkpoint_000000"
SMALL, LARGE = b"small", bytes(range(256)) * (5 << 12)


class Failing(LocalHome):
    """A home some of whose calls fail."""

    def _use(self) -> None:
        raise NotImplementedError

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        self._use()
        super().write(key, offset_bytes, data)

    def write_batch(self, *args: Any) -> None:
        self._use()
        super().write_batch(*args)

    def link(self, source: str, target: str) -> None:
        self._use()
        super().link(source, target)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        self._use()
        super().seal(checkpoint, seal)


class Tight(Failing):
    """A staging directory whose disk gets full at one of its writes, and stays so.

    Args:
        root: The directory.
        full_at: The number of the first write that fails.
    """

    def __init__(self, root: Path, full_at: int) -> None:
        super().__init__(root)
        self.calls_count = 0
        self.full_at = full_at

    def _use(self) -> None:
        self.calls_count += 1
        if self.calls_count > self.full_at:
            raise StoreFullError(errno.ENOSPC, "cannot write: no space left")

    def begin(self, checkpoint: str) -> str:
        self._use()
        return super().begin(checkpoint)


class Down(LocalHome):
    """A destination that answers only from some try on."""

    tries_count = 0
    up_at = 10**9

    def begin(self, checkpoint: str) -> str:
        self.tries_count += 1
        if self.tries_count < self.up_at:
            raise StoreUnreachableError("it does not answer")
        return super().begin(checkpoint)


class Staging(StagingHome):
    """A `StagingHome` on a disk of the test's."""

    def __init__(self, destination: Home, local: Tight, agent: Any = None, **more: Any) -> None:
        agent = agent or Agent()
        super().__init__(destination, local.root, agent, "node1", **more)
        clock = Clock()

        def sleep(seconds: float) -> None:
            clock.now_s += seconds

        self._local = SpillingHome(
            local, destination, "node1", make_room=agent.make_room, timeout_s=60.0,
            clock=clock, sleep=sleep,
        )  # fmt: skip


class Agent:
    """Nothing is sent, and there is no room to be made."""

    def __init__(self, make_room: Callable[[], None] = lambda: None) -> None:
        self.make_room = make_room

    def has_room(self) -> bool:
        return True

    def wake(self) -> None:
        pass

    def is_settled(self, attempt: str) -> bool:
        return True


def report(home: Home, tmp_path: Path) -> CheckpointUpload:
    """Small files, one that is a hard link, and large ones in chunks."""
    source = tmp_path / "large"
    source.write_bytes(LARGE)
    upload = CheckpointUpload(home, CHECKPOINT, 0)
    for name in ("a/one", "two"):
        with upload.open(name) as stream:
            stream.write(SMALL)
    upload.send_batch()
    upload.add_file("large", source)
    upload.add_file("linked", source, same_as="large")
    with upload.open("b/streamed") as stream:
        for start in range(0, len(LARGE), 1 << 20):
            stream.write(LARGE[start : start + (1 << 20)])
    upload.make_dir("empty")
    upload.copied(1)
    assert upload.seal()
    return upload


WHOLE = {"a/one": SMALL, "two": SMALL, "large": LARGE, "linked": LARGE, "b/streamed": LARGE}


def published(home: Any, attempts: Collection[str]) -> dict[str, bytes]:
    committer = home.committer
    committer.record(committer.place(CHECKPOINT, attempts=list(attempts)).manifest)
    files = committer.manifest(CHECKPOINT).files
    found = {}
    for file in files:
        data = home.read(f"{CHECKPOINT}/{file.path}", 0, file.size_bytes)
        found[file.path] = bytes(data)
    return found


def destinations(tmp_path: Path) -> dict[str, Callable[[], Home]]:
    return {
        "directory": lambda: LocalHome(tmp_path / "home"),
        "bucket": lambda: BucketHome(MemoryBucket()),
    }


@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("full_at", range(6))
def test_wherever_the_disk_gets_full_the_whole_arrives(
    tmp_path: Path, kind: str, full_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    home = destinations(tmp_path)[kind]()
    local = Tight(tmp_path / "node", full_at)
    upload = report(Staging(home, local), tmp_path)
    assert "@" not in upload.reported_as
    assert published(home, [upload.reported_as]) == WHOLE
    assert not list(local.root.rglob("large"))
    (said,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    for part in ("node1", str(local.root), "no space left", CHECKPOINT, "directly"):
        assert part in said


def test_with_room_nothing_goes_to_the_destination(tmp_path: Path) -> None:
    home = LocalHome(tmp_path / "home")
    local = Tight(tmp_path / "node", 100)
    upload = report(Staging(home, local), tmp_path)
    assert upload.reported_as == f"{upload.attempt}@node1"
    assert local.calls_count == 6, "all of these have failed in turn above"
    assert not (tmp_path / "home").exists()


def test_room_that_can_be_made_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Tight(tmp_path / "node", 3)
    free = [0]

    def make_room() -> None:
        local.full_at, free[0] = 100, 1 << 30

    monkeypatch.setattr("tune_sync.behind.spilling_home.free_bytes", lambda path: free[0])
    home = LocalHome(tmp_path / "home")
    upload = report(Staging(home, local, Agent(make_room)), tmp_path)
    assert upload.reported_as == f"{upload.attempt}@node1"
    assert not (tmp_path / "home").exists()


def test_a_destination_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    home = Down(tmp_path / "home")
    home.up_at = 5
    upload = report(Staging(home, Tight(tmp_path / "node", 2)), tmp_path)
    assert published(home, [upload.reported_as]) == WHOLE


class Pausing(Failing):
    """A destination that stops to answer in the middle of what it is sent.

    Args:
        root: The directory.
        fails_at: The number of the first call that fails.
        fails_count: So many do, one after the other.
    """

    def __init__(self, root: Path, fails_at: int, fails_count: int = 3) -> None:
        super().__init__(root)
        self.calls_count = 0
        self._fails = range(fails_at, fails_at + fails_count)

    def _use(self) -> None:
        self.calls_count += 1
        if self.calls_count - 1 in self._fails:
            raise StoreUnreachableError("it does not answer")

    def finish(self, key: str) -> None:
        self._use()
        super().finish(key)


@pytest.mark.parametrize("fails_at", range(7))
def test_a_destination_that_stops_to_answer_after_a_checkpoint_has_spilled_is_waited_for(
    tmp_path: Path, fails_at: int
) -> None:
    home = Pausing(tmp_path / "home", fails_at)
    upload = report(Staging(home, Tight(tmp_path / "node", 0)), tmp_path)
    assert home.calls_count > fails_at, "it has not failed"
    assert published(home, [upload.reported_as]) == WHOLE


def test_a_destination_that_never_answers_again_is_named_once_the_time_is_up(
    tmp_path: Path,
) -> None:
    home = Pausing(tmp_path / "home", 1, 10**9)
    with pytest.raises(StoreFullError) as refused:
        report(Staging(home, Tight(tmp_path / "node", 0)), tmp_path)
    for part in (CHECKPOINT, "node1", "does not answer", "staging_dir"):
        assert part in str(refused.value)


def test_with_no_way_at_all_one_error_names_node_directory_and_ways_out(tmp_path: Path) -> None:
    local = Tight(tmp_path / "node", 2)
    with pytest.raises(StoreFullError) as refused:
        report(Staging(Down(tmp_path / "home"), local), tmp_path)
    for part in (CHECKPOINT, "node1", str(local.root), "no space left", "does not answer",
                 "make room", "staging_dir"):  # fmt: skip
        assert part in str(refused.value)


def test_what_was_reported_before_it_grew_stays_on_the_node(tmp_path: Path) -> None:
    home, local = LocalHome(tmp_path / "home"), Tight(tmp_path / "node", 100)
    upload = CheckpointUpload(Staging(home, local), CHECKPOINT, 0)
    with upload.open("two") as stream:
        stream.write(SMALL)
    assert upload.seal()
    first = upload.reported_as
    local.full_at = local.calls_count
    with upload.open("more") as stream:
        stream.write(SMALL)
    assert upload.seal()
    assert first != upload.reported_as
    assert (local.root / layout.seal_key(CHECKPOINT, upload.attempt)).exists()
    assert published(home, [upload.reported_as]) == {"two": SMALL, "more": SMALL}


@pytest.mark.parametrize("full_at", [0, 2, 5, 100])
def test_an_attempt_can_be_given_up_wherever_it_is(tmp_path: Path, full_at: int) -> None:
    home = LocalHome(tmp_path / "home")
    upload = report(Staging(home, Tight(tmp_path / "node", full_at)), tmp_path)
    upload.abort()
    assert not [f for top in ("home", "node") for f in (tmp_path / top).rglob("large")]


def test_what_has_spilled_to_another_disk_is_moved_there_unread(tmp_path: Path) -> None:
    class Full(LocalHome):
        def begin(self, checkpoint: str) -> str:
            raise StoreFullError(errno.ENOSPC, "no space left")

    disk = NodeDisk(tmp_path / "disk")
    below = SpillingHome(disk, LocalHome(tmp_path / "home"), "node1")
    made = disk.make_directory()
    (made / "given").write_bytes(LARGE)
    (made / "other").write_bytes(LARGE)
    number = (made / "given").stat().st_ino
    upload = CheckpointUpload(SpillingHome(Full(tmp_path / "none"), below, "node1"), CHECKPOINT, 0)  # type: ignore[arg-type]
    upload.add_file("given", made / "given", is_given=True)
    upload.add_file("linked", made / "given", same_as="given")
    upload.add_file("other", made / "other")
    upload.copied(1)
    assert upload.seal()
    copies = StagedCopies(disk.root)
    ((checkpoint, attempt),) = copies.attempts()
    data = disk.root / layout.staged_key(checkpoint, attempt)
    assert (data / "given").stat().st_ino == (data / "linked").stat().st_ino == number
    seal = copies.seal(checkpoint, attempt)
    assert seal is not None
    assert {file.path: file.digest for file in seal.files} == dict.fromkeys(
        ("given", "linked", "other"), ""
    )
    assert copies.newest_whole(checkpoint)
