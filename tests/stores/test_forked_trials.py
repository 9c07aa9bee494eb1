"""Trials that fork processes of their own between their reports to a bucket."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.stores.seaweed import S3Server
from tune_sync import RunConfig, SyncConfig

URL = "s3://bucket/results"
STEPS, POOL_COUNT = 4, 2
# More than one part of an upload.
BLOB_BYTES = 12 << 20
TIMEOUT_S = 100.0

_reported: list[Any] = []


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def made_by(number: int) -> bytes:
    """What a process of the pool computes."""
    return os.urandom(BLOB_BYTES // POOL_COUNT)


def read_again(number: int) -> str:
    """A process of the pool reads what its parent has reported before the fork."""
    checkpoint = _reported[0]
    with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/blob") as file:
        return digest_of(file.read())


def report(step: int, data: bytes, **metrics: Any) -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made, "blob").write_bytes(data)
        checkpoint = tune.Checkpoint.from_directory(made)
        tune.report({"step": step, "digest": digest_of(data), **metrics}, checkpoint=checkpoint)


def with_a_pool(config: dict[str, Any]) -> None:
    """Its processes are there before the first report, or come after it; they work all the time."""
    data = os.urandom(BLOB_BYTES)
    if config["is_late"]:
        report(0, data)
        _reported.append(tune.get_checkpoint())
    pool = multiprocessing.get_context("fork").Pool(POOL_COUNT)
    read = pool.map_async(read_again, range(POOL_COUNT if config["is_late"] else 0))
    for step in range(int(config["is_late"]), STEPS):
        parts = pool.map_async(made_by, range(POOL_COUNT))
        report(step, data)
        data = b"".join(parts.get(TIMEOUT_S))
    seen = read.get(TIMEOUT_S)
    pool.close()
    pool.join()
    report(STEPS, data, seen=seen)


@pytest.mark.parametrize("engine", ["obstore", "pyarrow"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_trial_reports_while_processes_that_it_forked_work(
    own_server: S3Server, engine: str, is_late: bool
) -> None:
    sync = SyncConfig(upload_dir=URL, storage_options={**own_server.options, "engine": engine})
    config = RunConfig(name=f"{engine}-{is_late}", verbose=0, sync_config=sync)
    space = {"is_late": is_late}
    (result,) = tune.Tuner(with_a_pool, param_space=space, run_config=config).fit()
    assert result.error is None
    assert len(result.best_checkpoints) == STEPS + 1
    digests = []
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            digests.append(digest_of(Path(local, "blob").read_bytes()))
            assert digests[-1] == metrics["digest"]
    if is_late:
        assert result.metrics["seen"] == [digests[0]] * POOL_COUNT
