from __future__ import annotations

import io
import mmap
import os
import pickle
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tune_sync.torch as fast
from tests.fastpath.objects import BUILDS, numbers, outline
from tune_sync.behind.file_calls import is_being_written
from tune_sync.fastpath import Slots
from tune_sync.fastpath.torch_saver import Saver

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
GPU_CYCLES = 1_000_000_000  # half a second
NOT_ON_GPU = {"quantized"}  # whatever the device
ASKS_THE_GPU = {"one_that_saves_itself"}  # as it is pickled


@pytest.fixture(params=["in shared memory", "on disk"])
def target(request: pytest.FixtureRequest, shared_memory: Path, tmp_path: Path) -> Path:
    return (shared_memory if request.param == "in shared memory" else tmp_path) / "state.pt"


@pytest.fixture
def saver(shared_memory: Path) -> Iterator[Saver]:
    made = Saver(Slots(shared_memory))
    yield made
    made.close()


def load(path: Path, **options: Any) -> Any:
    return torch.load(path, weights_only=False, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_plain_torch_loads_what_it_would_have_saved(
    build: Callable[[str], Any], device: str, target: Path, saver: Saver
) -> None:
    value = build(device)
    plain = target.with_name("plain.pt")
    torch.save(value, plain)
    saver.save(value, target)
    expected = outline(load(plain))
    assert outline(load(target)) == expected
    assert outline(load(target, mmap=True)) == expected
    assert outline(fast.load(target, weights_only=False)) == expected
    assert outline(fast.load(plain, weights_only=False)) == expected


# What PyTorch can load without running code of the file.
@pytest.mark.parametrize("name", ["every_dtype", "training_state", "shared_storages"])
def test_it_loads_as_weights_only(name: str, target: Path, saver: Saver) -> None:
    value = BUILDS[name]("cpu")
    saver.save(value, target)
    assert outline(torch.load(target, weights_only=True)) == outline(value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(set(BUILDS) - {"meta"}))
def test_the_fast_way_is_taken(name: str, device: str, target: Path, saver: Saver) -> None:
    """From a GPU it is not waited for: the call returns while what was queued before runs."""
    value = BUILDS[name](device)
    if device == "cuda":
        for _ in range(2):  # making a slot waits for the GPU
            saver.save(value, target)
        torch.cuda._sleep(GPU_CYCLES)
        before = torch.cuda.Event()
        before.record()
    pending = saver.save_async(value, target)
    if device == "cuda":
        assert not before.query() or name in ASKS_THE_GPU, "the call waited for the GPU"
        assert not pending.done() or name in NOT_ON_GPU | ASKS_THE_GPU
    pending.result()
    checksums = {i.CRC for i in zipfile.ZipFile(target).infolist() if "/data/" in i.filename}
    assert checksums <= {0}


def test_views_of_one_storage_still_share_it(target: Path, saver: Saver) -> None:
    saver.save(BUILDS["shared_storages"]("cpu"), target)
    loaded = load(target)
    loaded["all"].fill_(7)
    assert loaded["rows"].eq(7).all() and loaded["columns"].eq(7).all()


def test_slots_are_used_again_and_hold_the_newest(target: Path, saver: Saver) -> None:
    value = {"step": 0, "weights": numbers((300, 1000), "cpu")}
    seen = set()
    for step in range(6):
        value = {"step": step, "note": "x" * step * 100, "weights": value["weights"] + step}
        saver.save(value, target)
        assert outline(load(target)) == outline(value)
        seen.update(path.name for path in saver.slots.folder.iterdir())
    assert len(seen) <= 2


def test_a_reader_keeps_what_it_has_opened(shared_memory: Path, saver: Saver) -> None:
    target = shared_memory / "state.pt"
    first = numbers((300, 1000), "cpu")
    saver.save(first, target)
    held = load(target, mmap=True)
    for step in range(4):
        saver.save(first + step + 1, target)
    assert torch.equal(held, first)


def test_each_path_keeps_its_checkpoint(shared_memory: Path, saver: Saver) -> None:
    values = [numbers((300, 1000), "cpu") for _ in range(5)]
    for n, value in enumerate(values):
        saver.save(value, shared_memory / f"{n}.pt")
    assert all(torch.equal(load(shared_memory / f"{n}.pt"), v) for n, v in enumerate(values))


def test_what_is_to_be_handed_over_is_nobody_elses(saver: Saver) -> None:
    """As `staged_checkpoint` makes its directories below that of the slots."""
    value = numbers((300, 1000), "cpu")
    saver.slots.is_there()
    paths = [saver.slots.folder / f"made-{step}" / "state.pt" for step in range(4)]
    for step, path in enumerate(paths):
        path.parent.mkdir()
        saver.save_async(value + step, path).result()
        assert path.stat().st_nlink == 1
        assert not is_being_written(path)
    for step, path in enumerate(paths):
        assert torch.equal(load(path), value + step)
        shutil.rmtree(path.parent)
    saver.close()
    assert list(saver.slots.folder.iterdir()) == []


def test_a_file_that_plain_torch_overwrote_does_no_harm(shared_memory: Path, saver: Saver) -> None:
    target = shared_memory / "state.pt"
    value = numbers((300, 1000), "cpu")
    for step in range(4):
        saver.save(value + step, target)
        assert torch.equal(load(target), value + step)
        torch.save(value - step, target)
        assert torch.equal(load(target), value - step)


@pytest.mark.parametrize("limit_bytes", [1, 1 << 30])
def test_over_the_budget_it_saves_all_the_same(shared_memory: Path, limit_bytes: int) -> None:
    saver = Saver(Slots(shared_memory, memory_limit_bytes=limit_bytes))
    value = BUILDS["training_state"]("cpu")
    saver.save_async(value, shared_memory / "state.pt").result()
    assert outline(load(shared_memory / "state.pt")) == outline(value)
    saver.close()


def test_without_shared_memory_it_saves_all_the_same(tmp_path: Path) -> None:
    saver = Saver(Slots(tmp_path / "none"))
    saver.save([1, numbers((3,), "cpu")], tmp_path / "state.pt")
    assert load(tmp_path / "state.pt")[0] == 1
    saver.close()


@pytest.mark.parametrize(
    "options",
    [
        {"pickle_protocol": 4},
        {"_use_new_zipfile_serialization": False},
        {"pickle_module": pickle},
    ],
    ids=lambda options: next(iter(options)),
)
def test_arguments_of_torch_save_are_kept(
    options: dict[str, Any], target: Path, saver: Saver
) -> None:
    value = BUILDS["training_state"]("cpu")
    saver.save(value, target, **options)
    assert outline(load(target)) == outline(value)


def test_a_file_object_is_written_to() -> None:
    buffer = io.BytesIO()
    fast.save({"a": 1}, buffer)
    buffer.seek(0)
    assert fast.load(buffer) == {"a": 1}


def test_what_cannot_be_pickled_raises_what_torch_raises(target: Path, saver: Saver) -> None:
    saver.save("old", target)
    with pytest.raises(Exception, match="pickle"):
        saver.save(lambda: None, target)
    assert load(target) == "old"
    assert [p.name for p in target.parent.iterdir() if p.is_file()] == ["state.pt"]


def test_a_link_stays_a_link(target: Path, saver: Saver) -> None:
    link = target.with_name("latest.pt")
    link.symlink_to(target)
    saver.save("through the link", link)
    assert link.is_symlink()
    assert load(target) == "through the link"


def test_a_pipe_is_written_to_and_stays(target: Path, saver: Saver) -> None:
    pipe, read = target.with_name("pipe"), list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    saver.save({"a": torch.ones(3)}, pipe)
    reader.join()
    assert pipe.is_fifo()
    assert torch.load(io.BytesIO(read[0]))["a"].tolist() == [1.0] * 3


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_have_the_permissions_that_new_files_have(
    umask: int, target: Path, saver: Saver
) -> None:
    before = os.umask(umask)
    try:
        saver.save(numbers((3,), "cpu"), target)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_settings_of_torch_are_as_they_were(flags: int, target: Path, saver: Saver) -> None:
    with torch.serialization.set_default_mmap_options(flags):
        saver.save(numbers((3,), "cpu"), target)
        assert torch.serialization.get_default_mmap_options() == flags
    torch.save(numbers((3,), "cpu") + 1, target)
    assert load(target).ne(0).all()
