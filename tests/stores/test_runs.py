"""A search whose results are in a bucket, on one machine with a real S3 server."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.fs as pafs
import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.local.trainables import stumbles
from tests.stores.seaweed import S3Server, seaweed
from tune_sync import RunConfig, SyncConfig, cleanup, restore_kwargs
from tune_sync.errors import (
    ConfigError,
    ExperimentExistsError,
    StoreDeniedError,
    StoreUnreachableError,
)

URL = "s3://bucket/results"
LARGE_BYTES = 40 << 20
SOON_S = 150.0


def plain_s3() -> pafs.S3FileSystem:
    """pyarrow's own client, which only in URLs takes the endpoint from the environment."""
    return pafs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Its address and credentials are in the environment, as on a node that uses it."""
    with seaweed(tmp_path_factory.mktemp("weed")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.env.items():
            patch.setenv(name, value)
        plain_s3().create_dir("bucket")
        yield running


@pytest.fixture(scope="module")
def cluster(server: S3Server) -> Iterator[None]:
    """Ray whose workers have what the server needs in their environment."""
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


def in_bucket(name: str, **fields: Any) -> RunConfig:
    return RunConfig(name=name, verbose=0, sync_config=SyncConfig(upload_dir=URL, **fields))


def keys(name: str) -> list[str]:
    """All objects of an experiment, as plain pyarrow lists them."""
    top = f"bucket/results/{name}"
    found = plain_s3().get_file_info(pafs.FileSelector(top, recursive=True))
    return sorted(f.path.removeprefix(top + "/") for f in found if f.is_file)


def read(key: str) -> bytes:
    with plain_s3().open_input_stream(f"bucket/results/{key}") as file:
        return bytes(file.read())


def test_only_what_is_kept_stays_and_every_checkpoint_opens_as_it_was(
    server: S3Server, cluster: None
) -> None:
    config = in_bucket("kept")
    config.checkpoint_config = tune.CheckpointConfig(num_to_keep=1)
    sizes = tune.grid_search([4096, LARGE_BYTES])
    space = {"settings": {"steps": 4, "blob_bytes": sizes, "file_count": 20}}
    results = tune.Tuner(train_n, param_space=space, run_config=config).fit()
    assert not results.errors
    for result in results:
        with result.checkpoint.as_directory() as local:
            assert whole_digest(local) == result.metrics["digest"]
            assert Path(local, "empty").is_dir()

    stored = keys("kept")
    bodies = {k.rsplit("/", 2)[-2] for k in stored if "/checkpoint_" in k and k.count("/") == 2}
    assert bodies == {"checkpoint_000003"}
    assert {k.split("/")[1] for k in stored if k.startswith(".tune_sync")} == {
        "format.json", "manifests", "tuner.pkl"
    }  # fmt: skip
    for result in tune.Tuner.restore(f"{URL}/kept", train_n).get_results():
        with result.checkpoint.as_directory() as local:  # by pyarrow: knows no empty directories
            Path(local, "empty").mkdir()
            assert whole_digest(local) == result.metrics["digest"]
    assert cleanup(f"{URL}/kept").dropped == ()


def test_a_restore_from_the_url_goes_on_and_the_name_is_taken(
    server: S3Server, cluster: None
) -> None:
    assert len(tune.Tuner(stumbles, run_config=in_bucket("again")).fit().errors) == 1
    first = {key: read(f"again/{key}") for key in keys("again") if "/checkpoint_00000" in key}
    tuner = tune.Tuner.restore(f"{URL}/again", stumbles, resume_errored=True)
    (result,) = tuner.fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    assert first == {key: read(f"again/{key}") for key in first}
    names = {key.split("/")[1] for key in keys("again") if key[0] != "." and "/checkpoint_" in key}
    assert names == {f"checkpoint_00000{number}" for number in range(6)}
    published = [k for k in keys("again") if k.startswith(".tune_sync/manifests/")]
    assert len(published) == 6
    before = keys("again")
    with pytest.raises(ExperimentExistsError, match=f'restore."{URL}/again"'):
        tune.Tuner(train_n, run_config=in_bucket("again"))
    assert keys("again") == before


ODD = "a b%20c+d#e&ä"


def odd_files(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    step = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as local:
            step = int(Path(local, f"in {ODD}/{ODD}").read_text()) + 1
            assert Path(local, "empty").is_dir()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"in {ODD}").mkdir()
        Path(folder, "empty").mkdir()
        Path(folder, f"in {ODD}", ODD).write_text(str(step))
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
    if checkpoint is None:
        raise RuntimeError("this trial fails once")


def test_odd_names_of_paths_experiments_and_files_are_restored(
    server: S3Server, cluster: None
) -> None:
    sync = SyncConfig(upload_dir="s3://bucket/results/with blank/per%25cent")
    config = RunConfig(name=ODD, verbose=0, sync_config=sync)
    (first,) = tune.Tuner(odd_files, run_config=config).fit()
    assert first.error is not None
    where = f"bucket/results/with blank/per%cent/{ODD}"
    found = plain_s3().get_file_info(pafs.FileSelector(where, recursive=True))
    assert f"in {ODD}/{ODD}" in {"/".join(f.path.split("/")[-2:]) for f in found}
    url = f"s3://bucket/results/with%20blank/per%25cent/{quote(ODD)}"
    (second,) = tune.Tuner.restore(url, odd_files, resume_errored=True).fit()
    assert second.error is None and second.metrics["step"] == 1
    again = tune.Tuner.restore(trainable=odd_files, **restore_kwargs(url)).get_results()
    with again[0].checkpoint.as_directory() as local:
        assert Path(local, "empty").is_dir()


def test_a_restore_is_given_its_options_again(
    server: S3Server, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = in_bucket("given", storage_options=server.options)
    with monkeypatch.context() as patch:
        for name in server.env:
            patch.setenv(name, "wrong")
        assert len(tune.Tuner(stumbles, run_config=config).fit().errors) == 1
        given = restore_kwargs(f"{URL}/given", server.options)
        (result,) = tune.Tuner.restore(trainable=stumbles, resume_errored=True, **given).fit()
        assert result.error is None and result.metrics["resumed_at"] == 3
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
        with pytest.raises(StoreDeniedError, match="TUNE_SYNC_STORAGE_OPTIONS"):
            cleanup(f"{URL}/given")
        patch.setenv("TUNE_SYNC_STORAGE_OPTIONS", json.dumps(server.options))
        assert cleanup(f"{URL}/given").dropped == ()
    secret = server.options["secret"].encode()
    assert not any(secret in read(f"given/{key}") for key in keys("given"))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"secret": "wrong"}, StoreDeniedError, "credentials"),
        ({"endpoint_url": "http://127.0.0.1:9"}, StoreUnreachableError, "endpoint"),
        ({"colour": "red"}, ConfigError, "colour"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_told_before_training(
    server: S3Server, options: dict[str, str], error: type[Exception], says: str
) -> None:
    start_s = time.monotonic()
    with pytest.raises(error, match=says) as refusal:
        tune.Tuner(
            train_n, run_config=in_bucket("bad", storage_options={**server.options, **options})
        )
    assert time.monotonic() - start_s < SOON_S
    assert "s3://bucket/results/bad" in str(refusal.value)
    assert "testsecret" not in str(refusal.value)


def test_a_missing_bucket_is_told_before_training(server: S3Server) -> None:
    config = RunConfig(name="x", sync_config=SyncConfig(upload_dir="s3://nowhere/x"))
    with pytest.raises(ConfigError, match="create the bucket, or correct the URL"):
        tune.Tuner(train_n, run_config=config)


def test_an_earlier_experiment_cannot_be_moved_aside_in_a_bucket() -> None:
    with pytest.raises(ConfigError, match="renames nothing"):
        RunConfig(name="x", overwrite=True, sync_config=SyncConfig(upload_dir=URL))


def test_a_directory_that_all_nodes_see(cluster: None, tmp_path: Path) -> None:
    for upload_dir in (str(tmp_path / "a"), f"file://{tmp_path}/b"):
        config = RunConfig(name="x", verbose=0, sync_config=SyncConfig(upload_dir=upload_dir))
        (result,) = tune.Tuner(train_n, run_config=config).fit()
        assert result.error is None
        root = Path(upload_dir.removeprefix("file://"), "x")
        assert len(list(root.glob("*/checkpoint_*"))) == 3
        assert not list(root.glob(".tune_sync/probe-*"))
        assert len(tune.Tuner.restore(str(root), train_n).get_results()) == 1
