"""A library of the store that crashes takes the node's agent with it, not the trial."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import S3Server, seaweed
from tests.stores.test_behind import Fit
from tests.stores.test_weather import s3
from tune_sync import RunConfig, SyncConfig

URL = "s3://bucket/results"
STEPS = 10
CRASHES_COUNT = 2
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        s3(running).create_bucket(Bucket="bucket")
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield running
        ray.shutdown()


def agents() -> list[int]:
    """Processes of node agents."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().startswith(b"ray::NodeAgent"):
                found.append(int(entry.parent.name))
        except OSError:  # it has just ended
            continue
    return found


def crash_in_the_middle(faults: Faults, before: set[int]) -> None:
    """Wait until the agent is about to put a file, and end it as a segmentation fault does."""
    seen_count, deadline_s = len(faults.requests), time.monotonic() + TIMEOUT_S
    faults.passes.clear()
    while True:
        mine = set(agents()) - before
        puts = [r for r in faults.requests[seen_count:] if r.startswith("PUT") and "blob" in r]
        if mine and puts:
            break
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    os.kill(mine.pop(), signal.SIGSEGV)
    faults.passes.set()


def test_a_crash_of_the_client_costs_no_checkpoint_and_no_trial(
    server: S3Server, tmp_path: Path
) -> None:
    before, faults = set(agents()), Faults()
    with proxy(server.endpoint_url, faults) as url:
        sync = SyncConfig(
            upload_dir=URL, storage_options={**server.options, "endpoint_url": url},
            wait_for="staged", staging_dir=tmp_path / "staging",
        )  # fmt: skip
        config = RunConfig(name="crash", verbose=0, sync_config=sync)
        space = {"settings": {"steps": STEPS, "pause_s": 1.0}}
        fit = Fit(tune.Tuner(train_n, param_space=space, run_config=config))
        for _ in range(CRASHES_COUNT):
            crash_in_the_middle(faults, before)
            time.sleep(1.0)
        (result,) = fit.end()
        assert result.error is None
        assert result.metrics["resumed_at"] == 0  # the trial has not even noticed
        assert len(result.best_checkpoints) == STEPS
        for checkpoint, metrics in result.best_checkpoints:
            with checkpoint.as_directory() as local:
                assert whole_digest(local) == metrics["digest"]
