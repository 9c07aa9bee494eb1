from __future__ import annotations

import logging
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fastpath.forks import ends_well, fork
from tune_sync.errors import ConfigError
from tune_sync.fastpath import Slot, Slots
from tune_sync.fastpath import slots as slots_module
from tune_sync.fastpath.folder import sweep
from tune_sync.fastpath.placing import place_by
from tune_sync.testing.transport_pair import wait_until

MIB = 1 << 20


@pytest.fixture
def new_slots(shared_memory: Path) -> Iterator[Callable[..., Slots]]:
    made: list[Slots] = []

    def new(**settings: int) -> Slots:
        made.append(Slots(shared_memory, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield new
    for slots in made:
        slots.close()


def take(slots: Slots, need_bytes: int = MIB) -> Slot:
    slot = slots.take(need_bytes, wait_s=60)
    assert slot is not None
    return slot


def resident_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_all_pages_of_a_slot_have_their_memory(new_slots: Callable[..., Slots]) -> None:
    slot = take(new_slots(), 3 * MIB)
    assert resident_bytes(slot.path) >= slot.capacity_bytes >= 3 * MIB


def test_a_slot_that_is_given_back_is_taken_again(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots(max_checkpoints_in_memory=1)
    first = take(slots)
    slots.give_back(first)
    assert take(slots, MIB - 1000) is first


def test_the_second_slot_is_made_in_the_background(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots()
    first = take(slots)
    deadline = time.monotonic() + 60
    while len(list(slots.folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert take(slots) is not first


def test_prepared_slots_are_there_when_they_are_needed(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots()
    slots.prepare(MIB)
    assert take(slots) is not take(slots)
    assert len(list(slots.folder.iterdir())) == 2


def test_a_linked_slot_is_not_filled_again(
    new_slots: Callable[..., Slots], shared_memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots = new_slots(max_checkpoints_in_memory=1)
    slot = take(slots)
    os.link(slot.path, shared_memory / "mine")
    slots.give_back(slot)
    with caplog.at_level(logging.WARNING):
        assert slots.take(MIB, wait_s=0) is None
        assert slots.take(MIB, wait_s=0) is None
    (record,) = caplog.records
    assert "max_checkpoints_in_memory" in record.getMessage()
    (shared_memory / "mine").unlink()
    assert take(slots) is slot


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_slot_that_somebody_reads_is_not_filled_again(
    new_slots: Callable[..., Slots], how: str
) -> None:
    slots = new_slots(max_checkpoints_in_memory=1)
    slot = take(slots)
    reader = slot.path.open("rb")
    held = mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) if how == "mapped" else reader
    if how == "mapped":
        reader.close()
    slots.give_back(slot)
    assert slots.take(MIB, wait_s=0) is None
    held.close()
    assert take(slots) is slot


def test_a_slot_that_is_given_away_is_replaced_and_its_file_stays(
    new_slots: Callable[..., Slots], shared_memory: Path
) -> None:
    slots = new_slots(max_checkpoints_in_memory=1, memory_limit_bytes=MIB + MIB // 2)
    capacities_bytes = set()
    for number in range(3):
        slot = take(slots)
        slot.memory[0] = number
        os.link(slot.path, shared_memory / str(number))
        slots.give_away(slot)
        capacities_bytes.add(slot.capacity_bytes)
    take(slots).memory[0] = 255
    assert [(shared_memory / str(number)).read_bytes()[0] for number in range(3)] == [0, 1, 2]
    assert len(capacities_bytes) == 1
    assert len(list(slots.folder.iterdir())) == 1


def test_who_waits_for_a_slot_that_is_given_away_is_told(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots(max_checkpoints_in_memory=1)
    slot = take(slots)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(slots.take, MIB, wait_s=60.0)
        wait_until(lambda: bool(slots._changed._waiters))  # type: ignore[attr-defined]
        slots.folder.chmod(0o775)  # so that no other can be made
        slots.give_away(slot)
        assert waiting.result(30.0) is None
    slots.folder.chmod(0o700)


@pytest.mark.parametrize("how", ["truncated", "written"])
def test_a_slot_that_somebody_wrote_into_is_dropped(
    new_slots: Callable[..., Slots], how: str
) -> None:
    slots = new_slots(max_checkpoints_in_memory=1)
    slot = take(slots)
    slots.give_back(slot)
    time.sleep(0.02)  # times of files are as fine as the kernel's ticks
    if how == "truncated":
        os.truncate(slot.path, 0)
        os.truncate(slot.path, slot.capacity_bytes)
    else:
        with slot.path.open("r+b") as file:
            file.write(b"x")
    assert take(slots) is not slot
    assert not slot.path.exists()


def test_over_the_budget_there_is_no_slot_and_no_error(
    new_slots: Callable[..., Slots], caplog: pytest.LogCaptureFixture
) -> None:
    slots = new_slots(memory_limit_bytes=3 * MIB)
    with caplog.at_level(logging.WARNING):
        assert slots.take(4 * MIB) is None
        assert slots.take(4 * MIB) is None
    (record,) = caplog.records
    assert "memory_limit_bytes" in record.getMessage()


def test_idle_slots_of_another_size_make_room(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots(memory_limit_bytes=10 * MIB, max_checkpoints_in_memory=1)
    small = take(slots, 4 * MIB)
    slots.give_back(small)
    assert take(slots, 8 * MIB).capacity_bytes >= 8 * MIB
    assert not small.path.exists()


def test_a_slot_in_use_never_makes_room(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots(memory_limit_bytes=10 * MIB, max_checkpoints_in_memory=1)
    used = take(slots, 4 * MIB)
    assert slots.take(8 * MIB, wait_s=0) is None
    assert used.path.exists()


def test_more_than_shared_memory_has_is_refused(
    new_slots: Callable[..., Slots], caplog: pytest.LogCaptureFixture
) -> None:
    slots = new_slots(memory_limit_bytes=1 << 60)
    with caplog.at_level(logging.WARNING):
        assert slots.take(1 << 50) is None
    assert "--shm-size" in caplog.text


def test_more_than_a_container_has_left_is_not_begun(
    new_slots: Callable[..., Slots], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its processes would be killed, whatever limit was asked for."""
    monkeypatch.setattr(slots_module, "memory_available_bytes", lambda: 3 * MIB)
    slots = new_slots(memory_limit_bytes=100 * MIB)
    with caplog.at_level(logging.WARNING):
        assert slots.take(4 * MIB) is None
    assert "or its container" in caplog.text
    assert slots.take(2 * MIB) is not None


def test_without_shared_memory_there_is_no_slot(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "no" / "such")
    assert not slots.is_there()
    assert slots.take(MIB) is None


def test_a_folder_that_others_may_write_to_is_not_used(shared_memory: Path) -> None:
    slots = Slots(shared_memory)
    slots.folder.mkdir()
    slots.folder.chmod(0o775)
    assert slots.take(MIB) is None


def test_a_folder_that_others_may_only_enter_is_closed_to_them(shared_memory: Path) -> None:
    slots = Slots(shared_memory)
    slots.folder.mkdir()
    slots.folder.chmod(0o755)
    assert slots.take(MIB) is not None
    assert slots.folder.stat().st_mode & 0o777 == 0o700
    slots.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_limit_bytes": 0},
        {"memory_limit_bytes": -1},
        {"memory_limit_bytes": "40GB"},
        {"max_checkpoints_in_memory": 0},
    ],
)
def test_limits_that_cannot_be_are_refused_by_their_names(wrong: dict[str, int]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"^{name}={value!r}: a whole number .*is needed"):
        Slots(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size_bytes", [1e8, "17GB", 0])
def test_a_size_that_cannot_be_is_refused_at_the_call(
    new_slots: Callable[..., Slots], size_bytes: int
) -> None:
    with pytest.raises(ConfigError, match=f"^size_bytes={size_bytes!r}".replace("+", ".")):
        new_slots().prepare(size_bytes)


def test_whatever_goes_wrong_with_a_slot_nobody_waits_for_it(
    new_slots: Callable[..., Slots], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Slot, threads: int | None = None) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Slot, "warm", fail)
    slots = new_slots()
    with pytest.raises(RuntimeError, match="new thread"):
        slots.take(MIB)
    began_s = time.monotonic()
    slots.close()
    assert time.monotonic() - began_s < 10
    assert not list(slots.folder.iterdir())


LEAVE = """
import os, sys
from pathlib import Path
from tune_sync.fastpath import Slots
slots = Slots(Path(sys.argv[1]), max_checkpoints_in_memory=1)
print(slots.take(1 << 20).path.name, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""


def leave(shared_memory: Path, how: str) -> str:
    argv = [sys.executable, "-c", LEAVE, str(shared_memory), how]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()


def test_what_a_killed_process_left_is_swept_and_nothing_else(
    new_slots: Callable[..., Slots], shared_memory: Path
) -> None:
    name = leave(shared_memory, "killed")
    slots = new_slots(max_checkpoints_in_memory=1)
    alive = take(slots)
    assert [p.name for p in slots.folder.iterdir()] == [alive.path.name]
    assert name != alive.path.name
    assert sweep(slots.folder) == []


def test_a_process_that_ends_leaves_nothing(shared_memory: Path) -> None:
    assert leave(shared_memory, "ends")
    assert list(shared_memory.glob("*/*")) == []


def test_a_fork_leaves_its_parents_slots_alone(new_slots: Callable[..., Slots]) -> None:
    slots = new_slots(max_checkpoints_in_memory=1)
    slot = take(slots)
    slots.give_back(slot)

    def take_and_close() -> bool:
        own = take(slots).path
        slots.close()
        return own != slot.path and not own.exists()

    assert ends_well(fork(take_and_close))
    assert slot.path.exists()
    assert take(slots) is slot


@pytest.mark.parametrize("name", ["n" * 255, "\u6a21" * 85])
def test_what_is_saved_may_have_any_name_that_a_file_can_have(tmp_path: Path, name: str) -> None:
    def fill(temporary: Path) -> None:
        temporary.write_bytes(b"after")

    (tmp_path / name).write_bytes(b"before")
    place_by(tmp_path / name, fill)
    assert (tmp_path / name).read_bytes() == b"after"
    assert len(list(tmp_path.iterdir())) == 1
