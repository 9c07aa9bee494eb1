"""Several processes that report one checkpoint, on one machine with a real S3 server."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train

from tests.hosts.drivers.ranks import IS_V2, QUICK, DataParallelTrainer, Lines
from tests.stores.seaweed import S3Server, seaweed
from tune_sync import RunConfig, SyncConfig, run_config_kwargs
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url

URL = "s3://bucket/results"
RANKS_COUNT, STEPS, DISAGREE_AT = 2, 3, 1
LAX_RANKS_COUNT, LAX_STEPS = 4, 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        open_bucket(parse_bucket_url("s3://bucket"), running.options).put("here", b"")
        yield running


@pytest.fixture(scope="module")
def logs(server: S3Server) -> Iterator[Path]:
    """A running Ray; where it keeps what its processes log."""
    context = ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000,
        runtime_env={"env_vars": QUICK},
    )  # fmt: skip
    yield Path(context.address_info["session_dir"], "logs")
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


def lax_loop(config: dict[str, Any]) -> None:
    """All agree in the first step, and none in the others."""
    rank = ray.train.get_context().get_world_rank()
    for step in range(LAX_STEPS):
        with tempfile.TemporaryDirectory() as directory:
            says = rank if step else "all"
            Path(directory, "common.json").write_text(json.dumps({"step": step, "says": says}))
            Path(directory, f"shard_{rank}.bin").write_text(f"{step} of {rank}")
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"step": step}, checkpoint=checkpoint)


def fit(
    server: S3Server, name: str, train: Any = loop, ranks_count: int = RANKS_COUNT,
    *, strict: bool = True,
) -> str:  # fmt: skip
    """What went wrong with a run."""
    sync_config = SyncConfig(upload_dir=URL, storage_options=server.options, strict=strict)
    keep: dict[str, Any] = {
        "train_loop_per_worker": train,
        "scaling_config": ray.train.ScalingConfig(
            num_workers=ranks_count, resources_per_worker={"CPU": 0.4},
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


@pytest.mark.lowest_slow
def test_what_strict_ranks_disagree_about_is_not_taken_and_what_was_before_is(
    server: S3Server, logs: Path
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


@pytest.mark.lowest
def test_a_checkpoint_of_several_ranks_is_their_union_and_where_they_disagree_the_lowest_wins(
    server: S3Server, logs: Path
) -> None:
    here = Lines()
    logging.getLogger("ray.tune_sync").addHandler(here)
    try:
        assert fit(server, "lax", lax_loop, LAX_RANKS_COUNT, strict=False) == ""
    finally:
        logging.getLogger("ray.tune_sync").removeHandler(here)
    bucket = open_bucket(parse_bucket_url(f"{URL}/lax"), server.options)
    found = [found.key for found in bucket.list("")]
    keys = [key for key in found if ".tune_sync/" not in key]
    common = sorted(key for key in keys if key.endswith("/common.json"))
    says = [json.loads(bucket.get(key))["says"] for key in common]
    # Without obstore, a put cannot see that another rank's is there.
    is_in_order = bucket.capabilities.conditional_put
    assert says[0] == "all"
    assert set(says[1:]) == {0} if is_in_order else set(says[1:]) <= {*range(LAX_RANKS_COUNT)}
    first, *differing = [key.removesuffix("/common.json") for key in common]
    shards = {f"shard_{rank}.bin": f"0 of {rank}".encode() for rank in range(LAX_RANKS_COUNT)}
    whole = {key.removeprefix(f"{first}/") for key in keys if key.startswith(f"{first}/")}
    assert whole - {".metadata.json"} == {"common.json", *shards}
    assert {name: bucket.get(f"{first}/{name}") for name in shards} == shards
    # A manifest is put once, and nothing is visible before: so it was when all ranks were in.
    published = [json.loads(bucket.get(key))["files"] for key in found if "/manifests/" in key]
    assert len(published) == LAX_STEPS
    assert all(whole == {file["path"] for file in files} for files in published)
    said = [*here.lines]
    for log in logs.glob("worker-*"):
        said += log.read_text(errors="replace").splitlines()
    for checkpoint, kept in zip(differing, says[1:], strict=True):
        mine = [line for line in said if f"{checkpoint}: " in line and "different bytes" in line]
        whose = "that were put last" if kept else "of rank 0"
        what = f"report different bytes for common.json; stored those {whose}"
        assert len(mine) == LAX_RANKS_COUNT - 1, mine
        for rank in range(1, LAX_RANKS_COUNT):
            assert sum(f"ranks 0 and {rank} {what}" in line for line in mine) == 1
    assert not [line for line in said if f"{first}: " in line and "different bytes" in line]
