"""Runs whose trials report for `behind`: python -m benchmarks.behind_trial ENDPOINT PLACE

Answers orders {"part": "blocks", "kind": …, "case": …}, {"part": "run", "kind": …, "step_s": …} and
{"part": "loop", "kind": …}. PLACE is a directory on the disk that is staged on.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from benchmarks.bucket_place import BUCKET, our_options, ray_uri, set_environment
from benchmarks.cases import copy_of
from benchmarks.desk import Desk
from benchmarks.loop_meter import LoopMeter
from benchmarks.orders import serve

STORE_BYTES = 256 << 20
DRAIN_S = 300.0
LOOP_TRIALS_COUNT, LOOP_STEPS_COUNT = 2, 20  # a round of all kinds within a minute on two cores
RAY, STORED, PLAIN, OURS, GIVEN = "ray", "stored", "plain", "ours", "given"
NOTHING, WRITTEN = "nothing", "written"
PERIODIC, HOME = "periodic", "home"
WAITS_FOR = {
    STORED: "stored", PLAIN: "staged", OURS: "staged", GIVEN: "staged", PERIODIC: "staged",
}  # fmt: skip
PERIOD_S = 0.5  # some turns within a run of two seconds


def run_config(kind: str, endpoint: str, place: str, name: str, **more: Any) -> Any:
    """How a run is configured whose trials report in this way."""
    if kind in (RAY, NOTHING, WRITTEN):
        path = ray_uri(endpoint, "ray")
        return tune.RunConfig(name=name, storage_path=path, verbose=0, **more)
    if kind == HOME:
        where = tune_sync.SyncConfig()
        more["storage_path"] = f"{place}/results"
        return tune_sync.RunConfig(name=name, sync_config=where, verbose=0, **more)
    period = {"sync_on_checkpoint": False, "sync_period": PERIOD_S} if kind == PERIODIC else {}
    where = tune_sync.SyncConfig(
        upload_dir=f"s3://{BUCKET}/ours", storage_options=our_options(endpoint),
        wait_for=WAITS_FOR[kind], staging_dir=f"{place}/staging" if kind != STORED else None,
        **period,
    )  # fmt: skip
    return tune_sync.RunConfig(name=name, sync_config=where, verbose=0, **more)


@contextmanager
def written(kind: str, source: str, place: str) -> Any:
    """What a trial has written and is about to report; None if it reports nothing."""
    if kind == NOTHING:
        yield None
    elif kind == GIVEN:
        with tune_sync.staged_checkpoint() as staged:
            copy_of(Path(source), staged.path)
            yield staged.checkpoint
    else:
        with tempfile.TemporaryDirectory(dir=place) as directory:
            copy_of(Path(source), Path(directory))
            checkpoint = tune_sync.Checkpoint if kind in (OURS, STORED) else tune.Checkpoint
            yield None if kind == WRITTEN else checkpoint.from_directory(directory)


def reports(config: dict[str, Any]) -> None:
    """Report what is ordered, until there is an empty order; tells how long each took."""
    desk = ray.get_actor(config["desk"])
    while order := ray.get(desk.next.remote()):
        with written(config["kind"], order["source"], config["place"]) as checkpoint:
            os.sync()  # what was written to be reported is nobody's to wait for
            start_s = time.monotonic()
            tune.report({"step": 1}, checkpoint=checkpoint)
            seconds = time.monotonic() - start_s
        ray.get(desk.done.remote({"seconds": seconds}))


def trains(config: dict[str, Any]) -> None:
    """Train for a while between reports."""
    for step in range(config["steps"]):
        time.sleep(config["step_s"])
        with written(config["kind"], config["source"], config["place"]) as checkpoint:
            tune.report({"step": step}, checkpoint=checkpoint)


def drained(name: str) -> None:
    """Return when nothing is staged: what is sent would disturb whoever comes next."""
    end_s = time.monotonic() + DRAIN_S
    while tune_sync.status(name).staged_count:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{name} is not stored after {DRAIN_S:.0f} s")
        time.sleep(0.2)


def bare(kind: str, source: Path, place: Path) -> float:
    """What a disk can do: a copy, a copy that is durable, a rename."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        made, target = Path(directory, "made"), Path(directory, "target")
        made.mkdir()
        copy_of(source, made)
        os.sync()
        start_s = time.monotonic()
        if kind == "rename":
            made.rename(target)
        else:
            shutil.copytree(made, target)
        for path in target.iterdir() if kind == "synced" else ():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return time.monotonic() - start_s


class Runs:
    """The runs of one process: one a kind that stays and reports what is ordered, and whole ones.

    Args:
        endpoint: Of the sink.
        place: See the module's text.
    """

    def __init__(self, endpoint: str, place: str) -> None:
        self._endpoint = endpoint
        self._place = place
        self._desks: dict[str, Any] = {}
        self._count = 0

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what is ordered."""
        parts: dict[str, Callable[..., dict[str, Any]]] = {
            "blocks": self._blocks, "bare": self._bare, "run": self._run, "loop": self._loop,
        }  # fmt: skip
        return parts[order.pop("part")](**order)

    def end(self) -> None:
        """Let the runs end."""
        for desk in self._desks.values():
            desk.order.remote({})

    def _blocks(self, kind: str, source: str) -> dict[str, Any]:
        name = f"blocks-{kind}"
        if kind not in self._desks:
            self._desks[kind] = ray.remote(num_cpus=0)(Desk).options(name=name).remote()
            space = {"kind": kind, "place": self._place, "desk": name}
            config = run_config(kind, self._endpoint, self._place, name)
            tuner = tune.Tuner(reports, param_space=space, run_config=config)
            threading.Thread(target=tuner.fit, daemon=True).start()
            self._blocks(kind, str(Path(source).with_name("tiny")))  # imports, first connections
        done: dict[str, Any] = ray.get(self._desks[kind].order.remote({"source": source}))
        if WAITS_FOR.get(kind) == "staged":
            drained(name)
        return done

    def _bare(self, kind: str, source: str) -> dict[str, Any]:
        return {"seconds": bare(kind, Path(source), Path(self._place))}

    def _run(self, kind: str, source: str, steps: int, step_s: float) -> dict[str, Any]:
        space = {"kind": kind, "place": self._place, "source": source}
        config = run_config(kind, self._endpoint, self._place, self._name())
        space |= {"steps": steps, "step_s": step_s}
        start_s = time.monotonic()
        (result,) = tune.Tuner(trains, param_space=space, run_config=config).fit()
        if result.error is not None:
            raise AssertionError(result.error)
        return {"seconds": time.monotonic() - start_s}

    def _loop(self, kind: str, source: str) -> dict[str, Any]:
        meter = LoopMeter()
        config = run_config(
            kind, self._endpoint, self._place, self._name(), callbacks=[meter],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        )  # fmt: skip
        space = {"kind": kind, "place": self._place, "source": source, "step_s": 0.05}
        space |= {"steps": LOOP_STEPS_COUNT, "n": tune.grid_search(list(range(LOOP_TRIALS_COUNT)))}
        tuner = tune.Tuner(trains, param_space=space, run_config=config)
        with meter.measuring():
            grid = tuner.fit()
        if grid.errors:
            raise AssertionError(grid.errors)
        longest_ms = {name: round(1e3 * s, 1) for name, s in meter.longest_s.items()}
        return {"steps_s": meter.steps_s(), "longest_ms": longest_ms}

    def _name(self) -> str:
        self._count += 1
        return f"run-{self._count}"


def main(endpoint: str, place: str) -> None:
    """Start Ray, then answer orders."""
    set_environment(endpoint)
    kinds_count = len(WAITS_FOR) + 2
    ray.init(
        num_cpus=kinds_count + LOOP_TRIALS_COUNT, object_store_memory=STORE_BYTES,
        include_dashboard=False, log_to_driver=False, namespace="bench",
        _temp_dir=tempfile.mkdtemp(prefix="ts-bench-"),
    )  # fmt: skip
    runs = Runs(endpoint, place)
    serve(runs.answer)
    runs.end()
    os._exit(0)  # all of it ends with this process; nothing is to be kept


if __name__ == "__main__":
    main(*sys.argv[1:])
