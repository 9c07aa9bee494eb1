"""Many threads, and few of pyarrow's: nothing hangs, and every file is what was written."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.stores.proxy import proxy_process, write_faults
from tests.stores.seaweed import S3Server
from tune_sync import CloudSyncer, RunConfig, SyncConfig

URL = "s3://bucket/results"
THREADS_COUNT = 32
OPS_COUNT = 10
TASKS_COUNT = 50
FILE_COUNTS = (1, 4, 16, 257, 2000)
FEW_FILE_COUNTS = (4, 257)
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


def in_an_actor(config: dict[str, Any]) -> None:
    """Fifty uploads of an async actor at once, while its trial reports from an event loop."""
    with tempfile.TemporaryDirectory() as made:
        tune.report({}, checkpoint=tune.Checkpoint.from_directory(made))
    reported = tune.get_checkpoint()
    given = (reported.filesystem, reported.path.rpartition("/")[0], config["given"])
    actor = Uploads.remote(*given)  # type: ignore[attr-defined]

    async def report_beside() -> list[tuple[int, bool]]:
        under_way = [actor.upload.remote(number) for number in range(TASKS_COUNT)]
        with tempfile.TemporaryDirectory() as made:
            Path(made, "step").write_text("1")
            tune.report({}, checkpoint=tune.Checkpoint.from_directory(made))
        return list(await asyncio.gather(*under_way))

    done = asyncio.run(report_beside())
    most_count = ray.get(actor.most.remote())
    tune.report(
        {"right_count": sum(right for right, _ in done), "most_count": most_count,
         "same_count": sum(same for _, same in done)}
    )  # fmt: skip


@ray.remote(num_cpus=0, max_concurrency=TASKS_COUNT)
class Uploads:
    """An async actor: each call moves files through the run, and a directory beside it."""

    def __init__(self, filesystem: pafs.FileSystem, directory: str, options: Any) -> None:
        self.filesystem, self.directory, self.options = filesystem, directory, options
        self.pool = ThreadPoolExecutor(TASKS_COUNT)
        self.now_count = self.most_count = 0
        self.all_here = asyncio.Event()

    async def upload(self, number: int) -> tuple[int, bool]:
        """How many files of the run were right, and whether the directory came back the same."""
        self.now_count += 1
        self.most_count = max(self.most_count, self.now_count)
        if self.now_count == TASKS_COUNT:
            self.all_here.set()
        await self.all_here.wait()
        loop = asyncio.get_running_loop()
        url = f"{URL}/plain/{uuid.uuid4().hex}"
        with tempfile.TemporaryDirectory() as made:
            there, back = Path(made, "there"), Path(made, "back")
            there.mkdir()
            for name in range(3):
                (there / f"{name}").write_bytes(os.urandom(1000))
            syncer = CloudSyncer(storage_options=self.options)
            syncer.sync_up(str(there), url)  # returns at once, so the loop goes on
            top = f"{self.directory}/actor"
            right_count = await loop.run_in_executor(self.pool, use, self.filesystem, top, number)
            await loop.run_in_executor(self.pool, syncer.wait_or_retry)
            syncer.sync_down(url, str(back))
            await loop.run_in_executor(self.pool, syncer.wait_or_retry)
            is_same = whole_digest(there) == whole_digest(back)
        self.now_count -= 1
        return right_count, is_same

    async def most(self) -> int:
        return self.most_count


def test_fifty_uploads_of_an_async_actor_at_once_and_reports_from_a_loop(
    own_server: S3Server,
) -> None:
    options = dict(own_server.options)
    result = fit("actor", in_an_actor, options, given=options)
    assert result.metrics["most_count"] == TASKS_COUNT
    assert result.metrics["right_count"] == TASKS_COUNT * OPS_COUNT
    assert result.metrics["same_count"] == TASKS_COUNT
    assert len(result.best_checkpoints) == 2


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


@pytest.mark.parametrize(
    ("engine", "threads_count", "file_counts"),
    [
        ("obstore", 1, FILE_COUNTS),
        ("pyarrow", 1, FEW_FILE_COUNTS),  # whose threads are those that there are too few of
        pytest.param("obstore", 2, FILE_COUNTS, marks=pytest.mark.slow),
    ],
)
def test_a_directory_with_more_files_than_threads_is_stored(
    own_server: S3Server, engine: str, threads_count: int, file_counts: tuple[int, ...]
) -> None:
    start_s = time.monotonic()
    result = fit(
        f"few-{engine}-{threads_count}", with_few_threads,
        {**own_server.options, "engine": engine},
        threads_count=threads_count, file_counts=list(file_counts),
    )  # fmt: skip
    assert time.monotonic() - start_s < SOON_S
    assert [metrics["count"] for _, metrics in result.best_checkpoints] == list(file_counts)
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
