"""Several processes that report one checkpoint, on one machine with a real S3 server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train

from tests.hosts.drivers.ranks import IS_V2, QUICK, DataParallelTrainer
from tests.stores.seaweed import S3Server, seaweed
from tune_sync import RunConfig, SyncConfig, run_config_kwargs
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url

URL = "s3://bucket/results"
RANKS_COUNT, STEPS, DISAGREE_AT = 2, 3, 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        open_bucket(parse_bucket_url("s3://bucket"), running.options).put("here", b"")
        ray.init(
            "local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000,
            runtime_env={"env_vars": QUICK},
        )  # fmt: skip
        yield running
        ray.shutdown()


def loop(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    for step in range(STEPS):
        with tempfile.TemporaryDirectory() as directory:
            says = rank if step == DISAGREE_AT else "all"
            Path(directory, "common.json").write_text(json.dumps({"step": step, "says": says}))
            Path(directory, f"shard_{rank}").write_text(str(step))
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"step": step}, checkpoint=checkpoint)


def fit(server: S3Server, name: str) -> str:
    """What went wrong with a strict run."""
    sync_config = SyncConfig(upload_dir=URL, storage_options=server.options, strict=True)
    keep: dict[str, Any] = {
        "train_loop_per_worker": loop,
        "scaling_config": ray.train.ScalingConfig(
            num_workers=RANKS_COUNT, resources_per_worker={"CPU": 0.4},
            **({} if IS_V2 else {"trainer_resources": {"CPU": 0}}),
        ),
    }  # fmt: skip
    try:
        if IS_V2:
            kwargs = run_config_kwargs(sync_config, name=name, api="train")
            DataParallelTrainer(**keep, run_config=ray.train.RunConfig(**kwargs)).fit()
        else:
            config = RunConfig(name=name, sync_config=sync_config, verbose=0)
            ray.tune.Tuner(DataParallelTrainer(**keep), run_config=config).fit()
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.lowest
def test_what_strict_ranks_disagree_about_is_not_taken_and_what_was_before_is(
    server: S3Server,
) -> None:
    error = fit(server, "strict")
    assert "ranks 0 and 1 report different bytes for 'common.json'" in error
    bucket = open_bucket(parse_bucket_url(f"{URL}/strict"), server.options)
    keys = [found.key for found in bucket.list("")]
    manifests = [k for k in keys if "/manifests/" in k]
    # Train's own controller ends with the first error; Tune's goes on, as in a directory.
    assert len(manifests) == (DISAGREE_AT if IS_V2 else STEPS - 1)
    if not IS_V2:
        (state,) = (k for k in keys if k.startswith("experiment_state-"))
        assert b"TERMINATED" in bucket.get(state)
