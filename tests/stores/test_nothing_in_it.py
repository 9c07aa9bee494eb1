"""Checkpoints with files of no bytes and directories of no files: the same tree comes back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.bed.tree import tree_digest
from tests.stores.seaweed import S3Server, s3
from tune_sync import RunConfig, SyncConfig, restore_kwargs

URL = "s3://bucket/nothing"
ENGINES = ("obstore", *(pytest.param(n, marks=pytest.mark.slow) for n in ("pyarrow", "fsspec")))


def of_all_kinds(root: Path) -> None:
    for directory in ("empty", "a/b/c", "zeros/inner", "full"):
        (root / directory).mkdir(parents=True)
    for name in ("zero", "zeros/one", "zeros/inner/two", "a/three"):
        (root / name).touch()
    (root / "full/data").write_bytes(b"data")


def of_zeros(root: Path) -> None:
    (root / "zero").touch()


def of_directories(root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "c").mkdir()


def of_nothing(root: Path) -> None:
    """Not even that."""


KINDS: tuple[Callable[[Path], None], ...] = (of_all_kinds, of_zeros, of_directories, of_nothing)


def shape(directory: str | Path) -> str:
    return json.dumps(tree_digest(directory), sort_keys=True)


def reports_then_resumes(config: dict[str, Any]) -> None:
    """Reports one, and fails; when it is resumed, tells what it was given."""
    found = tune.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            given = shape(directory)
        tune.report({"given": given, "shape": config["shape"]})
        return
    with tempfile.TemporaryDirectory() as made:
        KINDS[config["kind"]](Path(made))
        assert shape(made) == config["shape"]
        tune.report({"shape": shape(made)}, checkpoint=tune.Checkpoint.from_directory(made))
    raise RuntimeError("fails, to be resumed")


def copy(server: S3Server, source: str, target: str) -> None:
    """What a tool of the store would do."""
    client = s3(server)
    for entry in client.list_objects_v2(Bucket="bucket", Prefix=source)["Contents"]:
        key = entry["Key"]
        where = {"Bucket": "bucket", "Key": target + key.removeprefix(source)}
        if key.endswith("/"):  # a marker of a directory, which this server lists and does not copy
            client.put_object(**where)
        else:
            client.copy_object(CopySource={"Bucket": "bucket", "Key": key}, **where)


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_files_and_directories_are_restored_from_a_bucket_and_from_its_copy(
    own_server: S3Server, engine: str, tmp_path: Path
) -> None:
    shapes = []
    for number, fill in enumerate(KINDS):
        (tmp_path / str(number)).mkdir()
        fill(tmp_path / str(number))
        shapes.append(shape(tmp_path / str(number)))
    options = {**own_server.options, "engine": engine}
    sync = SyncConfig(upload_dir=URL, storage_options=options)
    settings = [{"kind": number, "shape": found} for number, found in enumerate(shapes)]
    space = {"settings": tune.grid_search(settings)}

    def trial(config: dict[str, Any]) -> None:
        reports_then_resumes(config["settings"])

    config = RunConfig(name=engine, verbose=0, sync_config=sync)
    results = tune.Tuner(trial, param_space=space, run_config=config).fit()
    assert len(results.errors) == len(KINDS)
    copy(own_server, f"nothing/{engine}/", f"moved/{engine}/")
    for url in (f"s3://bucket/moved/{engine}", f"{URL}/{engine}"):
        given = restore_kwargs(url, options)
        again = tune.Tuner.restore(trainable=trial, resume_errored=True, **given).fit()
        assert [str(error) for error in again.errors] == []
        for result in again:
            assert result.metrics["given"] == result.metrics["shape"]
            with result.checkpoint.as_directory() as local:
                assert shape(local) == result.metrics["shape"]
