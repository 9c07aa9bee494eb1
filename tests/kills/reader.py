"""Runs beside the store, and reads what is there as anybody would who has plain Ray.

One process that stays: answers each line on its input, `["verb", "bucket/path"]`, with one line.

- ``named``: the checkpoints that the state of an experiment names, each opened.
- ``published``: index of a trial -> the step of its newest checkpoint that has a manifest.
- ``age``: the lease of an experiment grows old, as if nobody had refreshed it for long.
- ``make``: makes the bucket.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
from ray import tune
from ray.tune import ExperimentAnalysis

from tests.kills.training import digest_of, step_of

READS_COUNT = 8
TRIES_COUNT = 20
OURS = ".tune_sync/format.json"
LEASE = ".tune_sync/lease.json"
MANIFESTS = ".tune_sync/manifests"
AGE_S = 1000.0
READY_TIMEOUT_S = 90.0


def plain_s3() -> pafs.S3FileSystem:
    """pyarrow's own client."""
    return pafs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True
    )


def index_of(path: str) -> int:
    """The index of a trial, from the name that Ray gives its directory."""
    found = re.search(r"/train_[0-9a-f]+_(\d+)_[^/]*/checkpoint_\d+$", path)
    return int(found[1]) if found else -1


class Reader:
    """Args: s3: where the buckets are."""

    def __init__(self, s3: pafs.FileSystem) -> None:
        self._s3 = s3

    def make(self, path: str) -> bool:
        end_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                self._s3.create_dir(path)
                return True
            except OSError:  # the store is just being started
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.2)

    def named(self, path: str) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(READS_COUNT) as pool:
            found = [*pool.map(self._open, self._named(path))]
        if self._is_there(f"{path}/{OURS}"):  # bytes may lie in the place of one that never counts
            for one in found:
                trial, name = one["path"].rsplit("/", 2)[-2:]
                if not self._is_there(f"{path}/{MANIFESTS}/{trial}/{name}.json"):
                    one["error"] = one["error"] or "it has no manifest"
        return found

    def published(self, path: str) -> dict[int, int]:
        for _ in range(TRIES_COUNT):
            try:
                return dict(map(self._newest, self._manifests(path)))
            except FileNotFoundError:  # the run goes on, and has deleted it
                continue
        raise TimeoutError(f"{path} changes too fast to be read")

    def age(self, path: str) -> bool:
        key = f"{path}/{LEASE}"
        if not self._is_there(key):
            return False
        with self._s3.open_input_file(key) as file:
            lease = json.loads(file.readall())
        for field in ("heartbeat_s", "heartbeat_up_s"):
            lease[field] -= AGE_S
        with self._s3.open_output_stream(key) as out:
            out.write(json.dumps(lease).encode())
        return True

    def _is_there(self, key: str) -> bool:
        return bool(self._s3.get_file_info(key).is_file)

    def _named(self, path: str) -> list[tune.Checkpoint]:
        """What the state names, as plain Ray reads it; nothing if there is no state yet."""
        try:
            results = tune.ResultGrid(ExperimentAnalysis(path, storage_filesystem=self._s3))
        except ValueError as error:
            if "No experiment snapshot file" not in str(error):
                raise
            return []
        kept = [c for result in results for c, _ in result.best_checkpoints or ()]
        latest = [result.checkpoint for result in results if result.checkpoint]
        return [*{checkpoint.path: checkpoint for checkpoint in kept + latest}.values()]

    def _open(self, checkpoint: tune.Checkpoint) -> dict[str, Any]:
        found: dict[str, Any] = {"path": checkpoint.path, "index": index_of(checkpoint.path)}
        try:
            with checkpoint.as_directory() as folder:
                local = Path(folder)
                return {**found, "step": step_of(local), "digest": digest_of(local), "error": ""}
        except (OSError, ValueError) as error:
            return {**found, "error": f"{type(error).__name__}: {error}"}

    def _manifests(self, path: str) -> Iterator[str]:
        """The newest checkpoint of each trial's directory that has a manifest."""
        selector = pafs.FileSelector(f"{path}/{MANIFESTS}", allow_not_found=True, recursive=True)
        newest: dict[str, str] = {}
        for info in self._s3.get_file_info(selector):
            if info.is_file:
                trial, name = info.path.removesuffix(".json").rsplit("/", 2)[-2:]
                newest[trial] = max(newest.get(trial, ""), name)
        return (f"{path}/{trial}/{name}" for trial, name in newest.items())

    def _newest(self, checkpoint: str) -> tuple[int, int]:
        with self._s3.open_input_file(f"{checkpoint}/state.json") as file:
            return index_of(checkpoint), json.loads(file.readall())["step"]


def main() -> None:
    reader = Reader(plain_s3())
    for line in sys.stdin:
        verb, path = json.loads(line)
        print("ANSWER " + json.dumps(getattr(reader, verb)(path)), flush=True)


if __name__ == "__main__":
    main()
