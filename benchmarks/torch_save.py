"""How long saving PyTorch state from a GPU takes, beside what it can be compared with.

    python -m benchmarks.torch_save [--bytes 8589934592] [--tensors 32] [--rounds 5]

Needs a GPU with CUDA, and no Ray. All rows come from one process, one round after the other. Every
file is compared with the tensors, bit by bit, after the last round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import tune_sync.torch as fast
from tune_sync.fastpath import Slots, torch_copies
from tune_sync.fastpath.torch_saver import Saver

FOLDER = Path("/dev/shm/tune_sync-bench")

State = dict[str, torch.Tensor]
# What one round gives: seconds that the caller was blocked, and until all was done.
Round = tuple[float, float]
Rows = dict[str, list[Round]]


def state_of(size_bytes: int, count: int, device: str) -> State:
    each = size_bytes // 4 // count
    return {f"layer.{n}.weight": torch.randn(each, device=device) for n in range(count)}


def timed(start: Callable[[], Any], end: Callable[[Any], Any] = lambda started: None) -> Round:
    torch.cuda.synchronize()
    began = time.perf_counter()
    started = start()
    blocked = time.perf_counter() - began
    end(started)
    torch.cuda.synchronize()
    return blocked, time.perf_counter() - began


def limit_of(state: State) -> Callable[[], Round]:
    """Copies into pinned memory: no save can be faster."""
    pinned = [torch.empty_like(t, device="cpu", pin_memory=True) for t in state.values()]

    def copy() -> None:
        for target, tensor in zip(pinned, state.values(), strict=True):
            target.copy_(tensor, non_blocking=True)

    return lambda: timed(copy, lambda _: torch.cuda.synchronize())


def torch_save(state: State, name: str = "plain.pt") -> Callable[[], Round]:
    path = FOLDER / name
    return lambda: timed(lambda: torch.save(state, path))


def dcp_save(state: State) -> Callable[[], Round]:
    path = FOLDER / "dcp"
    return lambda: timed(lambda: dcp.save(state, checkpoint_id=path))


def dcp_async(state: State) -> Callable[[], Round]:
    path = FOLDER / "dcp-async"
    return lambda: timed(
        lambda: dcp.async_save(state, checkpoint_id=path), lambda future: future.result()
    )


def ours_save(saver: Saver, state: State) -> Callable[[], Round]:
    return lambda: timed(lambda: saver.save(state, FOLDER / "ours.pt"))


def ours_async(
    saver: Saver, state: State, *, overlap: bool, name: str = "ours.pt"
) -> Callable[[], Round]:
    path = FOLDER / name
    return lambda: timed(
        lambda: saver.save_async(state, path, overlap=overlap), lambda future: future.result()
    )


def ours_training(saver: Saver, state: State, *, overlap: bool) -> Callable[[], Round]:
    """Saving beside matrix products and an optimizer's step; all of it has to be done."""
    work = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    parameters = [torch.nn.Parameter(t) for t in state.values()]
    optimizer = torch.optim.SGD(parameters, lr=0.0)

    def train() -> Any:
        pending = saver.save_async(state, FOLDER / "ours.pt", overlap=overlap)
        train_only()
        return pending

    def train_only() -> None:
        for _ in range(60):
            work @ work
        for parameter in parameters[:1]:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    return lambda: timed(train, lambda pending: pending.result())


def products(state: State) -> Callable[[], Round]:
    work = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(60):
            work @ work

    return lambda: timed(run)


def to_disk(saver: Saver, state: State, folder: Path) -> Callable[[], Round]:
    return lambda: timed(
        lambda: saver.save_async(state, folder / "ours.pt"), lambda future: future.result()
    )


def torch_to_disk(state: State, folder: Path) -> Callable[[], Round]:
    def save() -> None:
        torch.save(state, folder / "plain.pt")
        with (folder / "plain.pt").open("rb") as file:
            os.fsync(file.fileno())

    return lambda: timed(save)


def loads(path: Path, load: Callable[..., Any]) -> Callable[[], Round]:
    return lambda: timed(lambda: load(path, map_location="cuda"))


def median(rows: list[Round]) -> dict[str, float]:
    return {
        "blocked_s": round(statistics.median(r[0] for r in rows), 5),
        "complete_s": round(statistics.median(r[1] for r in rows), 5),
        "least_s": round(min(r[1] for r in rows), 5),
        "most_s": round(max(r[1] for r in rows), 5),
    }


def first_times(state: State, size_bytes: int, threads: int) -> tuple[Saver, dict[str, float]]:
    """Make the slots and save for the first time."""
    limit_bytes = int(size_bytes * 2.2) + (64 << 20)
    slots = Slots(
        memory_limit_bytes=limit_bytes, threads=threads or None, on_made=torch_copies.register
    )
    saver = Saver(slots)
    first = timed(lambda: saver.save(state, FOLDER / "ours.pt"))
    began = time.perf_counter()
    second = slots.take(size_bytes + 65536, wait_s=300)
    waited = time.perf_counter() - began
    if second is None:
        raise SystemExit("no second slot: this machine has too little shared memory")
    slots.give_back(second)
    saver.save(state, FOLDER / "ours.pt")
    return saver, {"first_save_s": round(first[1], 3), "second_slot_wait_s": round(waited, 3)}


def check(state: State, path: Path) -> None:
    for name, tensor in torch.load(path, map_location="cuda", mmap=True).items():
        if not torch.equal(tensor, state[name]):
            raise SystemExit(f"{path}: {name} differs")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    state = state_of(arguments.bytes, arguments.tensors, "cuda")
    many = state_of(64 << 20, arguments.many, "cuda")
    size_bytes = sum(t.nbytes for t in state.values())
    saver, firsts = first_times(state, size_bytes, arguments.threads)
    many_saver = Saver(Slots(on_made=torch_copies.register))
    disk = Path(arguments.disk)
    disk.mkdir(parents=True, exist_ok=True)
    cases: dict[str, Callable[[], Round]] = {
        "limit: pinned copies": limit_of(state),
        "ours: save": ours_save(saver, state),
        "ours: save_async": ours_async(saver, state, overlap=False),
        "ours: save_async, overlap": ours_async(saver, state, overlap=True),
        "60 matrix products alone": products(state),
        "ours: save_async, then products and a step": ours_training(saver, state, overlap=False),
        "ours: with overlap, products and a step": ours_training(saver, state, overlap=True),
        f"ours: save_async, {arguments.many} tensors, 64 MiB in all": ours_async(
            many_saver, many, overlap=False, name="many.pt"
        ),
        f"torch.save, {arguments.many} tensors, 64 MiB in all": torch_save(many, "many-plain.pt"),
        "torch.load of ours": loads(FOLDER / "ours.pt", torch.load),
        "ours: load": loads(FOLDER / "ours.pt", fast.load),
        "ours: save_async to the disk": to_disk(saver, state, disk),
    }
    slow: dict[str, Callable[[], Round]] = {
        "torch.save": torch_save(state),
        "torch.save to the disk, fsync": torch_to_disk(state, disk),
        "DCP save": dcp_save(state),
        "DCP async_save": dcp_async(state),
    }
    if arguments.quick:
        slow.pop("DCP save")
    rows: Rows = {}
    for number in range(arguments.rounds + 1):
        for name, case in {**cases, **slow}.items():
            if number == 0 and name in slow:
                continue
            once = case()
            if number > 0:
                rows.setdefault(name, []).append(once)
            print(f"{number} {name}: blocked {once[0]:.4f}, complete {once[1]:.4f} s", flush=True)
            for left in ("plain.pt", "dcp", "dcp-async"):
                remove(FOLDER / left)
        saver.save(state, FOLDER / "ours.pt")
    check(state, FOLDER / "ours.pt")
    check(state, disk / "ours.pt")
    shutil.rmtree(disk)
    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "processors": os.cpu_count(), "bytes": size_bytes, "tensors": arguments.tensors,
        "rounds": arguments.rounds, **firsts, "rows": {k: median(v) for k, v in rows.items()},
    }  # fmt: skip


def remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def table(result: dict[str, Any]) -> str:
    rows = result["rows"]
    limit_s = rows["limit: pinned copies"]["complete_s"]
    plain_s = rows["torch.save"]["complete_s"]
    lines = ["| | blocked, s | complete, s | range | part of the limit | times torch.save |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in rows.items():
        complete_s = row["complete_s"]
        lines.append(
            f"| {name} | {row['blocked_s']:.4f} | {complete_s:.3f} "
            f"| {row['least_s']:.3f} to {row['most_s']:.3f} "
            f"| {limit_s / complete_s:.2f} | {plain_s / complete_s:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=8 << 30)
    parser.add_argument("--tensors", type=int, default=32)
    parser.add_argument("--many", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--disk", default="/tmp/tune_sync-bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    warnings.filterwarnings("ignore")
    FOLDER.mkdir(exist_ok=True)
    try:
        result = run(arguments)
    finally:
        shutil.rmtree(FOLDER)
    print(json.dumps(result, indent=1))
    print(table(result))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
