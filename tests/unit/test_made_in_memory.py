"""Directories that are made in shared memory, and handed over there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_memory_tier import BODY, Node, make
from tests.unit.test_node_sender import FIRST, SECOND, Shaky
from tune_sync.behind.node_disk import remove_made
from tune_sync.fastpath import Slot, Slots, placing
from tune_sync.transfer.upload import CheckpointUpload

pytestmark = pytest.mark.in_shared_memory

__all__ = ["make"]  # a fixture

# More than the sender's thread writes beside the checkpoints at any moment.
NOTES_BYTES = 4096


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[Slots]:
    shm = tmp_path / "shm"
    shm.mkdir()
    made = Slots(shm, max_checkpoints_in_memory=1)
    yield made
    made.close()


def taken(slots: Slots) -> Slot:
    slot = slots.take(len(BODY), wait_s=60)
    assert slot is not None
    return slot


def saved(slots: Slots, made: Path) -> int:
    """Save as `tune_sync.torch` does, to be handed over; returns how much that is."""
    slot = taken(slots)
    slot.memory[: len(BODY)] = BODY
    assert placing.place(slot, made / "large")
    slots.give_away(slot)
    slots.give_back(taken(slots))  # the next one is made in the background
    return slot.capacity_bytes


def handed_over(node: Node, made: Path, checkpoint: str) -> CheckpointUpload:
    upload = CheckpointUpload(node.staging, checkpoint, 0)
    upload.add_file("large", made / "large", is_given=True)
    upload.copied(1)
    assert upload.seal()
    remove_made(made)
    return upload


@pytest.mark.parametrize("is_known", [True, False])
def test_what_is_made_in_memory_is_handed_over_there(
    make: Callable[..., Node], is_known: bool
) -> None:
    """Room is found for what it is said to be, or else for what was handed over before."""
    node = make()
    if not is_known:
        first = node.staging.make_directory()
        assert first is not None and first.is_relative_to(node.disk)
        (first / "large").write_bytes(BODY)
        assert node.where(handed_over(node, first, FIRST)) == "disk"
    made = node.staging.make_directory(len(BODY) if is_known else 0)
    assert made is not None and made.is_relative_to(node.memory)
    assert node.budget.taken_bytes == len(BODY)
    (made / "large").write_bytes(BODY)
    inode = (made / "large").stat().st_ino
    upload = handed_over(node, made, SECOND)
    assert [path.stat().st_ino for path in node.memory.rglob("large")] == [inode]
    assert node.publish(upload, SECOND) == {"large": BODY}
    assert node.budget.taken_bytes == len(BODY)  # its seal lies beside it while it is confirmed


def test_a_slot_is_handed_over_counts_once_and_is_not_filled_again(
    make: Callable[..., Node], slots: Slots
) -> None:
    node = make()
    made = node.staging.make_directory(len(BODY))
    assert made is not None
    size_bytes = saved(slots, made)
    inode = (made / "large").stat().st_ino
    upload = handed_over(node, made, FIRST)
    (found,) = node.memory.rglob("large")
    assert found.stat().st_ino == inode
    (ready,) = (path for path in node.budget.folder.iterdir() if path.is_file())
    assert ready.stat().st_ino != inode
    slot = taken(slots)
    slot.memory[: len(BODY)] = BODY[::-1]
    slots.give_back(slot)
    assert node.publish(upload, FIRST)["large"][: len(BODY)] == BODY
    assert node.budget.taken_bytes == size_bytes + node.budget.ready_bytes


def test_a_slot_that_is_ready_has_the_room_of_what_is_made_of_it(
    make: Callable[..., Node], home: Shaky, slots: Slots
) -> None:
    home.is_up = False  # so that nothing makes room
    slot = taken(slots)
    size_bytes = slot.capacity_bytes
    slots.give_back(slot)
    node = make(limit_bytes=3 * size_bytes + NOTES_BYTES)
    for name in (FIRST, SECOND):
        made = node.staging.make_directory(size_bytes)
        assert made is not None and made.is_relative_to(node.memory)
        saved(slots, made)
        handed_over(node, made, name)
    assert 0 <= node.budget.taken_bytes - 3 * size_bytes <= NOTES_BYTES
    made = node.staging.make_directory(size_bytes)
    assert made is not None and made.is_relative_to(node.memory)
    remove_made(made)
    os.link(next(p for p in node.budget.folder.iterdir() if p.is_file()), made.parents[1] / "mine")
    made = node.staging.make_directory(size_bytes)
    assert made is not None and not made.is_relative_to(node.memory), "a file in use is no room"
    remove_made(made)


def test_what_finds_no_room_in_memory_is_made_on_the_disk(make: Callable[..., Node]) -> None:
    node = make(limit_bytes=2 * len(BODY))
    made = [node.staging.make_directory(len(BODY)) for _ in range(3)]
    assert [path is not None and path.is_relative_to(node.memory) for path in made] == [
        True, True, False,
    ]  # fmt: skip
    for path in made:
        assert path is not None
        remove_made(path)
    assert node.budget.taken_bytes == 0


def test_what_memory_will_never_take_is_said_with_the_sizes(
    make: Callable[..., Node], caplog: pytest.LogCaptureFixture
) -> None:
    node = make(limit_bytes=1000)
    for _ in range(2):
        made = node.staging.make_directory(len(BODY))
        assert made is not None and made.is_relative_to(node.disk)
        remove_made(made)
    (said,) = [record.getMessage() for record in caplog.records]
    for part in (
        f"{len(BODY)} bytes more",
        "limit of 1000 bytes",
        str(node.disk),
        "nothing is lost",
    ):
        assert part in said


def test_what_is_made_in_memory_and_is_one_too_many_goes_to_the_disk(
    make: Callable[..., Node], home: Shaky
) -> None:
    home.is_up = False
    node = make(most_count=1)
    uploads = []
    for name in (FIRST, SECOND):
        made = node.staging.make_directory(len(BODY))
        assert made is not None and made.is_relative_to(node.memory)
        (made / "large").write_bytes(BODY)
        uploads.append(handed_over(node, made, name))
    assert [node.where(upload) for upload in uploads] == ["memory", "disk"]
    end_s = time.monotonic() + 30.0  # its agent tidies up meanwhile
    while node.budget.taken_bytes != len(BODY):
        assert time.monotonic() < end_s, node.budget.taken_bytes
        time.sleep(0.01)


def test_what_a_killed_process_was_making_in_memory_goes(make: Callable[..., Node]) -> None:
    node = make()
    made = node.staging.make_directory(len(BODY))
    assert made is not None
    dead = made.parent.with_name(made.parent.name.replace(f"-{os.getpid()}-", "-4194000-"))
    made.parent.rename(dead)
    node.agent.wake()
    assert not dead.exists()
