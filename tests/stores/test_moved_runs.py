"""Results that were copied elsewhere, and restores by somebody else, go on from where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.local.trainables import stumbles
from tests.stores.seaweed import S3Server, make_bucket, s3, seaweed
from tune_sync import RunConfig, SyncConfig, restore_kwargs
from tune_sync.errors import StoreDeniedError

ALL = ["Admin", "Read", "Write", "List"]
USERS = {
    "starter": ALL,
    "other": ALL,
    "of-copies": [f"{may}:copies" for may in ALL],
}
FIRST = "s3://bucket/runs/exp"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """With an experiment that failed after three steps; nothing of it is in the environment."""
    with seaweed(tmp_path_factory.mktemp("weed"), users=USERS) as running:
        for bucket in ("bucket", "copies"):
            make_bucket(running, bucket)
        ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000)
        place = FIRST.rpartition("/")[0]
        sync = SyncConfig(upload_dir=place, storage_options=of(running, "starter"))
        assert (
            tune.Tuner(stumbles, run_config=RunConfig(name="exp", verbose=0, sync_config=sync))
            .fit()
            .errors
        )
        yield running
        ray.shutdown()


def of(server: S3Server, user: str) -> dict[str, str]:
    """A user's `storage_options`."""
    return {**server.options, "key": user, "secret": f"{user}-secret"}


def objects(server: S3Server, bucket: str) -> dict[str, str]:
    found = s3(server).list_objects_v2(Bucket=bucket).get("Contents", [])
    return {entry["Key"]: entry["ETag"] for entry in found}


def goes_on(given: dict[str, Any]) -> Any:
    (result,) = tune.Tuner.restore(trainable=stumbles, resume_errored=True, **given).fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    assert len(result.best_checkpoints) == 6
    with result.checkpoint.as_directory() as local:
        assert whole_digest(local) == result.metrics["digest"]
    return result


def test_a_copy_in_another_bucket_goes_on_for_one_who_may_use_only_that(server: S3Server) -> None:
    before = objects(server, "bucket")
    for key in before:
        body = s3(server).get_object(Bucket="bucket", Key=key)["Body"].read()
        s3(server).put_object(Bucket="copies", Key=key.replace("runs/exp", "a b/exp2"), Body=body)
    options = of(server, "of-copies")
    with pytest.raises(StoreDeniedError):
        tune.Tuner.restore(trainable=stumbles, **restore_kwargs(FIRST, options))
    result = goes_on(restore_kwargs("s3://copies/a%20b/exp2", options))
    assert result.checkpoint.path.startswith("copies/a b/exp2/")
    assert objects(server, "bucket") == before
    assert len([k for k in objects(server, "copies") if ".tune_sync/manifests/" in k]) == 6


def test_a_copy_on_a_disk_goes_on_there_and_asks_the_bucket_for_nothing(
    server: S3Server, tmp_path: Path
) -> None:
    before = objects(server, "bucket")
    for key in before:
        file = tmp_path / "copied" / key.removeprefix("runs/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(s3(server).get_object(Bucket="bucket", Key=key)["Body"].read())
    result = goes_on({"path": str(tmp_path / "copied/exp")})  # no credentials are anywhere
    assert result.checkpoint.path.startswith(str(tmp_path / "copied/exp"))
    assert len(list((tmp_path / "copied/exp").glob("*/checkpoint_*"))) == 6
    assert len(list((tmp_path / "copied/exp/.tune_sync/manifests").rglob("*.json"))) == 6
    assert objects(server, "bucket") == before


def test_a_restore_with_other_credentials_goes_on(server: S3Server) -> None:
    """The last of this experiment's tests: afterwards it is complete."""
    wrong = {**of(server, "starter"), "secret": "renewed since"}
    with pytest.raises(StoreDeniedError, match="credentials"):
        tune.Tuner.restore(trainable=stumbles, **restore_kwargs(FIRST, wrong))
    goes_on(restore_kwargs(FIRST, of(server, "other")))
