"""On the driver's host: who reads checkpoints: python -m benchmarks.replicas_restores ENDPOINT

Answers orders {"row": …, "source": …}.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from benchmarks.bucket_place import BUCKET, our_options
from benchmarks.cases import copy_of
from benchmarks.desk import Desk, trial_handler
from benchmarks.orders import serve
from tune_sync import FastPath
from tune_sync.run_filesystem import RunFileSystem

URL = f"s3://{BUCKET}/ours"
TINY = "/srv/sources/tiny"
STAGED = "staged"
WRITER, OTHER = "w1", "w2"
FROM = ("here", "here copied", "home", "home copied", "s3")
READERS = ("one", "eight", "shared", "brought one", "brought")
EIGHT = 8
# So nothing of a replicated checkpoint is stored, and it is read where it is staged.
NO_BANDWIDTH_BYTES_PER_S = 1
MEMORY_BYTES = 3 << 30


def opened(checkpoint: tune.Checkpoint) -> float:
    """How long it takes until all its files are there, and mapped."""
    start_s = time.monotonic()
    with checkpoint.as_directory() as directory, ExitStack() as stack:
        for path in Path(directory).iterdir():
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            stack.callback(data.close)
            data.read(1)
        return time.monotonic() - start_s


def copied(checkpoint: tune.Checkpoint) -> float:
    """How long it takes to have a copy of its own."""
    with tempfile.TemporaryDirectory() as directory:
        start_s = time.monotonic()
        checkpoint.to_directory(directory)
        return time.monotonic() - start_s


def trial(config: dict[str, Any]) -> None:
    """Report, or read what was reported, until there is an empty order."""
    desk = ray.get_actor(config["host"])
    while order := ray.get(desk.next.remote()):
        try:
            done = act(**order)
        except Exception as error:  # whoever ordered it would wait in vain
            done = {"error": f"{type(error).__name__}: {error}"}
        ray.get(desk.done.remote(done))


def act(
    path: str = "", is_ours: bool = False, is_anew: bool = False, **to_report: Any
) -> dict[str, Any]:
    """Read a checkpoint, or report one."""
    if not path:
        return report(**to_report)
    handler = trial_handler()
    if is_anew:
        home, _, _ = handler.locate(path)
        home._agent.free_memory("")  # what was brought here for the row before
        home._far_found.clear()  # as in a process that has just been started
    kind = tune_sync.Checkpoint if is_ours else tune.Checkpoint
    return {"seconds": opened(kind(path, RunFileSystem(handler)))}


def report(source: str, number: int) -> dict[str, Any]:
    """Report a copy of some files; returns where Ray says it is."""
    size_bytes = sum(path.stat().st_size for path in Path(source).iterdir())
    with tune_sync.staged_checkpoint(size_bytes) as staged:
        copy_of(Path(source), staged.path)
        tune.report({"step": number}, checkpoint=staged.checkpoint)
    trial_dir = Path(tune.get_context().get_trial_dir()).name
    return {"path": f"{BUCKET}/ours/{STAGED}/{trial_dir}/checkpoint_{number:06d}"}


def stores(config: dict[str, Any]) -> None:
    """Store directories of files in the bucket, a checkpoint each."""
    for source in config["sources"]:
        tune.report({}, checkpoint=tune_sync.Checkpoint.from_directory(source))


def placed(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """On the host that is named."""
    return tune.PlacementGroupFactory([{"CPU": 1, config["host"]: 0.1}])


class Reader:
    """A process on the second worker."""

    def opened(self, checkpoint: tune.Checkpoint) -> float:
        """See `opened`."""
        return opened(checkpoint)

    def copied(self, checkpoint: tune.Checkpoint) -> float:
        """See `copied`."""
        return copied(checkpoint)


class Reads:
    """What is read: one run whose checkpoints stay in memory, and one whose are in the bucket.

    Args:
        endpoint: Of the sink.
    """

    def __init__(self, endpoint: str) -> None:
        self._options = our_options(endpoint)
        self._readers: list[Any] = []
        self._desks: dict[str, Any] = {}
        self._replicated: dict[str, str] = {}
        self._stored: dict[str, tune.Checkpoint] = {}
        self._brought_count = 0

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Let a row be read once."""
        row, source = order["row"], order["source"]
        if row in ("s3", *READERS):
            is_brought = row.startswith("brought")
            found = self._to_bring(source) if is_brought else self._stored_of(source)
            return self._read_stored(row, found)
        path, is_far = self._replicated_of(source), row.startswith("home")
        is_ours = not row.endswith("copied")
        return self._do(OTHER if is_far else WRITER, path=path, is_ours=is_ours, is_anew=is_far)

    def _read_stored(self, row: str, checkpoint: tune.Checkpoint) -> dict[str, Any]:
        readers = self._started()[: EIGHT if row in ("eight", "shared", "brought") else 1]
        verb = "copied" if row in ("one", "eight") else "opened"
        if row == "shared":  # ours is copied for each process
            checkpoint = tune.Checkpoint(checkpoint.path, checkpoint.filesystem)
        start_s = time.monotonic()
        each_s = ray.get([getattr(reader, verb).remote(checkpoint) for reader in readers])
        return {"seconds": time.monotonic() - start_s, "each_s": each_s}

    def _started(self) -> list[Any]:
        if not self._readers:
            remote = ray.remote(num_cpus=0, resources={OTHER: 0.1})(Reader)
            self._readers = [remote.remote() for _ in range(EIGHT)]
            tiny = self._stored_of(TINY)  # imports, first connections
            ray.get([reader.copied.remote(tiny) for reader in self._readers])
        return self._readers

    def _stored_of(self, source: str) -> tune.Checkpoint:
        if source not in self._stored:
            self._stored[source] = self._store(f"stored-{Path(source).name}", [source])
        return self._stored[source]

    def _to_bring(self, source: str) -> tune.Checkpoint:
        """One that no node has, of a run whose agent has been started where it will be read."""
        self._brought_count += 1
        memory = FastPath(memory_limit=MEMORY_BYTES, max_checkpoints_in_memory=9)
        name, sources = f"brought-{self._brought_count}", [TINY, source]
        found = self._store(name, sources, wait_for="staged", fast_path=memory)
        tiny = tune_sync.Checkpoint(found.path[:-1] + "0", found.filesystem)
        ray.get(self._started()[0].opened.remote(tiny))
        return found

    def _store(self, name: str, sources: list[str], **sync: Any) -> tune.Checkpoint:
        """Have a run report them; returns the last one."""
        config = tune_sync.RunConfig(
            name=name, verbose=0,
            sync_config=tune_sync.SyncConfig(
                upload_dir=URL, storage_options=self._options, **sync
            ),
        )  # fmt: skip
        space = {"sources": sources, "host": WRITER}
        trainable = tune.with_resources(stores, placed(space))
        (result,) = tune.Tuner(trainable, param_space=space, run_config=config).fit()
        if result.error is not None:
            raise AssertionError(result.error)
        return result.checkpoint

    def _replicated_of(self, source: str) -> str:
        if source not in self._replicated:
            if not self._desks:
                self._start()
            number = len(self._replicated)
            done = self._do(WRITER, source=source, number=number)
            self._replicated[source] = done["path"]
            for host, is_ours in ((WRITER, True), (WRITER, False), (OTHER, False)):
                self._do(host, path=done["path"], is_ours=is_ours)  # connections
        return self._replicated[source]

    def _start(self) -> None:
        for host in (WRITER, OTHER):
            options = {"name": host, "num_cpus": 0, "resources": {"head": 0.1}}
            self._desks[host] = ray.remote(Desk).options(**options).remote()
        sync = tune_sync.SyncConfig(
            upload_dir=URL, storage_options=self._options, wait_for="replicated",
            fast_path=FastPath(memory_limit=MEMORY_BYTES, max_checkpoints_in_memory=9),
            max_bandwidth_bytes_per_s=NO_BANDWIDTH_BYTES_PER_S,
        )  # fmt: skip
        config = tune_sync.RunConfig(name=STAGED, sync_config=sync, verbose=0)
        space = {"host": tune.grid_search([WRITER, OTHER])}
        trainable = tune.with_resources(trial, placed)
        tuner = tune.Tuner(trainable, param_space=space, run_config=config)
        threading.Thread(target=tuner.fit, daemon=True).start()

    def _do(self, host: str, **order: Any) -> dict[str, Any]:
        done: dict[str, Any] = ray.get(self._desks[host].order.remote(order))
        if "error" in done:
            raise AssertionError(done["error"])
        return done


def main(endpoint: str) -> None:
    """Start Ray, then answer orders."""
    ray.init(log_to_driver=False, namespace="bench")
    serve(Reads(endpoint).answer)
    os._exit(0)  # all of it ends with this process; nothing is to be kept


if __name__ == "__main__":
    main(*sys.argv[1:])
