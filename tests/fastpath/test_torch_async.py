from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fastpath.objects import numbers
from tune_sync.errors import StoreFullError
from tune_sync.fastpath import Slots, placing
from tune_sync.fastpath.torch_saver import Saver
from tune_sync.testing.transport_pair import wait_until

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
ROWS = {"cpu": 256, "cuda": 65536}


@pytest.fixture
def saver(shared_memory: Path) -> Iterator[Saver]:
    made = Saver(Slots(shared_memory))
    yield made
    made.close()


def state(device: str, count: int = 4) -> dict[str, torch.Tensor]:
    return {str(n): torch.zeros((ROWS[device], 1024), device=device) for n in range(count)}


def all_are(path: Path, value: float) -> bool:
    return all(bool(t.eq(value).all()) for t in torch.load(path).values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("folder", ["shared_memory", "tmp_path"])
def test_it_holds_the_values_of_the_call(
    device: str, folder: str, saver: Saver, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(folder) / "state.pt"
    values = state(device)
    for step in range(6):
        for tensor in values.values():
            tensor.add_(1)
        pending = saver.save_async(values, path)
        for tensor in values.values():
            tensor.fill_(-5)
        pending.result()
        assert all_are(path, step + 1), step
        for tensor in values.values():
            tensor.fill_(step + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_work_that_is_queued_before_the_call_is_in_the_file(
    device: str, saver: Saver, shared_memory: Path
) -> None:
    values = state(device, 1)
    values["0"].add_(0)
    for _ in range(2):  # making a slot waits for the GPU
        saver.save(values, shared_memory / "state.pt")
    side, count = (8192, 50) if device == "cuda" else (256, 2)  # on the GPU: a tenth of a second
    product = torch.ones((side, side), device=device)
    for _ in range(count):
        product = product @ product
    values["0"].add_(1)
    saver.save_async(values, shared_memory / "state.pt").result()
    assert all_are(shared_memory / "state.pt", 1)


@pytest.mark.parametrize("device", DEVICES)
def test_with_overlap_the_next_step_waits_and_buffers_are_safe(
    device: str, saver: Saver, shared_memory: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.BatchNorm1d(2048)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = numbers((64, 2048), device)
    for _ in range(5):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        pending = saver.save_async(model.state_dict(), shared_memory / "state.pt", overlap=True)
        (model(data) * data).sum().backward()
        optimizer.step()
        pending.result()
        loaded = torch.load(shared_memory / "state.pt")
        assert all(torch.equal(loaded[k], before[k]) for k in before)
        assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])


@pytest.mark.parametrize("device", DEVICES)
def test_with_overlap_what_changes_at_once_is_small_or_stepped(
    device: str, saver: Saver, shared_memory: Path
) -> None:
    rows = 256 * 1024 if device == "cuda" else 256  # on the GPU: copying takes longer than a step
    weights = torch.nn.Parameter(torch.zeros((rows, 1024), device=device))
    counter = torch.zeros(1000, device=device)
    optimizer = torch.optim.SGD([weights], lr=1.0)
    weights.grad = torch.ones_like(weights)
    for step in range(4):
        state = {"weights": weights.detach(), "counter": counter}
        pending = saver.save_async(state, shared_memory / "state.pt", overlap=True)
        counter.add_(1)
        optimizer.step()
        pending.result()
        loaded = torch.load(shared_memory / "state.pt")
        assert loaded["weights"].eq(-step).all()
        assert loaded["counter"].eq(step).all()


@pytest.mark.parametrize("device", DEVICES)
def test_saves_to_one_path_end_in_the_order_of_the_calls(
    device: str, saver: Saver, shared_memory: Path
) -> None:
    values = state(device, 1)
    pending = []
    for _ in range(10):
        values["0"].add_(1)
        pending.append(saver.save_async(values, shared_memory / "state.pt"))
    saver.save_async({"0": torch.full((1,), 11.0)}, shared_memory / "state.pt", pickle_protocol=3)
    pending.append(saver.save_async(values, shared_memory / "state.pt"))
    assert [p.result() for p in pending] == [shared_memory / "state.pt"] * 11
    assert all_are(shared_memory / "state.pt", 10)


def test_the_file_is_not_there_before_it_is_whole(
    saver: Saver, shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    place = placing.place

    def later(*args: object) -> None:
        may_go_on.wait(60)
        place(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(placing, "place", later)
    pending = saver.save_async(state("cpu"), shared_memory / "state.pt")
    assert not (shared_memory / "state.pt").exists()
    may_go_on.set()
    pending.result()
    assert all_are(shared_memory / "state.pt", 0)


def test_a_slow_save_never_replaces_a_later_one(
    saver: Saver, shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = placing.place

    def late(*args: object) -> None:
        time.sleep(0.3)
        place(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(placing, "place", late)
    saver.save_async("first", shared_memory / "state.pt")
    saver.save("second, as torch.save does it", shared_memory / "state.pt", pickle_module=pickle)
    saver.close()
    assert torch.load(shared_memory / "state.pt") == "second, as torch.save does it"


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_kept_alive_when_it_is_done(
    device: str, saver: Saver, shared_memory: Path
) -> None:
    tensor = torch.zeros((1024, 1024), device=device)
    gone = weakref.ref(tensor.untyped_storage())
    saver.save_async({"a": tensor}, shared_memory / "state.pt").result()
    del tensor
    gc.collect()
    wait_until(lambda: gone() is None)  # the thread that saved it may be about to let it go


def test_what_went_wrong_is_in_the_future(saver: Saver, tmp_path: Path) -> None:
    pending = saver.save_async(state("cpu"), tmp_path / "no such folder" / "state.pt")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        pending.result()


def test_errors_of_a_full_disk_survive_pickling() -> None:
    error = StoreFullError(28, "no space left")
    assert pickle.loads(pickle.dumps(error)).args == error.args
