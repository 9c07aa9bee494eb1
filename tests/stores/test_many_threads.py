"""Many threads, and few of pyarrow's: nothing hangs, and every file is what was written."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.stores.proxy import proxy_process, write_faults
from tests.stores.seaweed import S3Server
from tune_sync import RunConfig, SyncConfig

URL = "s3://bucket/results"
THREADS_COUNT = 32
OPS_COUNT = 10
FILE_COUNTS = (1, 4, 16, 257, 2000)
LATENCY_S = 0.5  # far more than a busy machine needs for a request
# Nobody waits for a thread that waits for another: then it would be for ever.
SOON_S = 200.0


def fit(name: str, trainable: Any, options: dict[str, Any], **space: Any) -> Any:
    """The result of one trial."""
    sync = SyncConfig(upload_dir=URL, storage_options=options)
    config = RunConfig(name=name, verbose=0, sync_config=sync)
    (result,) = tune.Tuner(trainable, param_space=space, run_config=config).fit()
    assert result.error is None
    return result


def use(filesystem: pafs.FileSystem, directory: str, thread: int) -> int:
    """Write, look and read, again and again; returns how many files were right."""
    right_count = 0
    for number in range(OPS_COUNT):
        path, data = f"{directory}/{thread}-{number}", f"{thread} {number}".encode() * 500
        with filesystem.open_output_stream(path) as out:
            out.write(data)
        size_bytes = filesystem.get_file_info(path).size
        with filesystem.open_input_stream(path) as file:
            right_count += size_bytes == len(data) and file.read() == data
    return right_count


def in_many_threads(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as made:
        tune.report({}, checkpoint=tune.Checkpoint.from_directory(made))
    reported = tune.get_checkpoint()
    filesystem, directory = reported.filesystem, reported.path.rpartition("/")[0]
    with ThreadPoolExecutor(THREADS_COUNT) as pool:
        done = pool.map(
            lambda thread: use(filesystem, f"{directory}/threads", thread), range(THREADS_COUNT)
        )
        right_count = sum(done)

    async def in_a_loop() -> int:  # which runs while the filesystem is asked, as in an async actor
        return use(filesystem, f"{directory}/loop", 0)

    tune.report({"right_count": right_count, "in_loop_count": asyncio.run(in_a_loop())})


@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_32_threads_and_an_event_loop_use_the_filesystem_of_a_run_at_once(
    own_server: S3Server, engine: str
) -> None:
    result = fit(f"threads-{engine}", in_many_threads, {**own_server.options, "engine": engine})
    assert result.metrics["right_count"] == THREADS_COUNT * OPS_COUNT
    assert result.metrics["in_loop_count"] == OPS_COUNT


def with_few_threads(config: dict[str, Any]) -> None:
    """Reports directories with more files than pyarrow has threads."""
    pa.set_io_thread_count(config["threads_count"])
    pa.set_cpu_count(config["threads_count"])
    if config["threads_count"] == 1:
        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
    for count in config["file_counts"]:
        with tempfile.TemporaryDirectory() as made:
            for number in range(count):
                Path(made, f"{number}").write_bytes(os.urandom(4096))
            digest, start_s = whole_digest(made), time.monotonic()
            tune.report(
                {"count": count, "digest": digest, "took_s": time.monotonic() - start_s},
                checkpoint=tune.Checkpoint.from_directory(made),
            )
        tune.report({"took_s": time.monotonic() - start_s, "count": count, "digest": digest})


@pytest.mark.parametrize("threads_count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_directory_with_more_files_than_threads_is_stored(
    own_server: S3Server, threads_count: int
) -> None:
    start_s = time.monotonic()
    result = fit(
        f"few-{threads_count}", with_few_threads, dict(own_server.options),
        threads_count=threads_count, file_counts=list(FILE_COUNTS),
    )  # fmt: skip
    assert time.monotonic() - start_s < SOON_S
    assert [metrics["count"] for _, metrics in result.best_checkpoints] == list(FILE_COUNTS)
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            assert whole_digest(local) == metrics["digest"]


def test_files_are_put_side_by_side(own_server: S3Server, tmp_path: Path) -> None:
    count = 257
    with proxy_process(own_server.endpoint_url, tmp_path / "faults") as url:
        write_faults(tmp_path / "faults", delay_s=LATENCY_S)
        result = fit(
            "side-by-side", with_few_threads, {**own_server.options, "endpoint_url": url},
            threads_count=2, file_counts=[count],
        )  # fmt: skip
    # One after the other, it would be three times as long in waiting alone.
    assert result.metrics["took_s"] < count * LATENCY_S / 3 + 10, result.metrics
