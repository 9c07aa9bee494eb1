"""A storage path is resolved once, where and when the configuration is built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tune_sync import RunConfig, SyncConfig, run_config_kwargs
from tune_sync.errors import ConfigError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A working directory, a HOME, a directory in a variable, and one elsewhere."""
    found = {name: tmp_path / name for name in ("cwd", "home", "variable", "elsewhere")}
    for path in found.values():
        path.mkdir()
    monkeypatch.setenv("HOME", str(found["home"]))
    monkeypatch.setenv("RESULTS_AT", str(found["variable"]))
    monkeypatch.chdir(found["cwd"])
    return found


@pytest.mark.parametrize(
    ("given", "base", "below"),
    [
        ("./r", "cwd", "r"),
        ("r", "cwd", "r"),
        ("r/../s/", "cwd", "s"),
        (".", "cwd", ""),
        (Path("r"), "cwd", "r"),
        ("~/r", "home", "r"),
        (Path("~/r"), "home", "r"),
        ("$RESULTS_AT/r", "variable", "r"),
        ("${RESULTS_AT}/r", "variable", "r"),
        ("a b%20c", "cwd", "a b%20c"),
    ],
)
def test_every_way_to_write_a_path_means_the_same_place_after_chdir(
    places: dict[str, Path], given: Any, base: str, below: str
) -> None:
    config = RunConfig(name="x", storage_path=given)
    kwargs = run_config_kwargs(storage_path=given, name="x")
    is_bare = isinstance(given, str) and given[0] not in "./~$"  # may be a bucket that is meant
    far = f"./{given}" if is_bare else given
    shared = RunConfig(name="x", sync_config=SyncConfig(upload_dir=far))
    os.chdir(places["elsewhere"])
    expected = str(places[base] / below)
    assert config.storage_path == kwargs["storage_path"] == expected
    assert shared.storage_path == expected
    filesystems = [config.storage_filesystem, kwargs["storage_filesystem"]]
    for filesystem in [*filesystems, shared.storage_filesystem]:
        assert filesystem.handler.experiment_root == f"{expected}/x"


@pytest.mark.parametrize("given", ["bucket/path", "bucket", "$BUCKET/path"])
def test_a_bare_path_is_no_upload_dir_as_a_bucket_may_be_meant(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET", "bucket")
    says = f"for a bucket write s3://{given} .*, or ./{given}".replace("$", "[$]")
    with pytest.raises(ConfigError, match=says):
        SyncConfig(upload_dir=given)
    for works in (f"./{given}", f"../{given}", f"/{given}", f"~/{given}", Path(given)):
        assert SyncConfig(upload_dir=works).upload_dir == works


@pytest.mark.parametrize("given", ["s3:/bucket/path", "s3//bucket/path", "S3:/bucket/path"])
def test_a_slip_in_a_url_is_named(given: str) -> None:
    with pytest.raises(ConfigError, match="is s3://bucket/path meant"):
        SyncConfig(upload_dir=given)


def test_a_file_url_is_a_path(places: dict[str, Path]) -> None:
    url = f"file://{places['elsewhere']}/r"
    assert RunConfig(storage_path=url).storage_path == str(places["elsewhere"] / "r")
    shared = RunConfig(sync_config=SyncConfig(upload_dir=url))
    assert shared.storage_path == str(places["elsewhere"] / "r")


def test_a_trial_that_is_named_like_a_checkpoint_is_refused_before_it_trains(
    local_ray: None, tmp_path: Path
) -> None:
    tuner = tune.Tuner(
        train_n, run_config=RunConfig(name="x", storage_path=tmp_path, verbose=0),
        tune_config=tune.TuneConfig(trial_dirname_creator=lambda trial: "checkpoint_000007"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"'checkpoint_000007'.*trial_dirname_creator"):
        tuner.fit()
    assert not list(tmp_path.glob("x/*/checkpoint_*"))


@pytest.mark.parametrize("place", ["storage_path", "upload_dir"])
def test_a_name_may_be_that_of_a_directory_in_a_group(
    local_ray: None, tmp_path: Path, place: str
) -> None:
    def config(name: str) -> RunConfig:
        if place == "upload_dir":
            return RunConfig(name=name, sync_config=SyncConfig(upload_dir=tmp_path), verbose=0)
        return RunConfig(name=name, storage_path=tmp_path, verbose=0)

    space = {"settings": {"steps": 2}}
    for name in ("group/one", "group/two"):
        assert not tune.Tuner(train_n, param_space=space, run_config=config(name)).fit().errors
    assert sorted(os.listdir(tmp_path / "group")) == ["one", "two"]
    (result,) = tune.Tuner.restore(str(tmp_path / "group/one"), train_n).fit()
    assert result.metrics["step"] == 1
    with pytest.raises(ConfigError, match=f"inside of {tmp_path}/group/one, which is an exp"):
        tune.Tuner(train_n, run_config=config("group/one/more")).fit()
    assert not (tmp_path / "group/one/more").exists()


def wanders(config: dict[str, Any]) -> None:
    os.chdir("/")
    train_n(config)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("storage_path", marks=pytest.mark.lowest),
        pytest.param("upload_dir", marks=pytest.mark.lowest_slow),
    ],
)
def test_results_land_where_the_path_meant_when_driver_and_trial_go_elsewhere(
    local_ray: None, places: dict[str, Path], name: str
) -> None:
    config = RunConfig(name="x", storage_path="./r", verbose=0)
    if name == "upload_dir":
        config = RunConfig(name="x", sync_config=SyncConfig(upload_dir="./r"), verbose=0)
    os.chdir(places["elsewhere"])
    tuner = tune.Tuner(wanders, param_space={"settings": {"steps": 2}}, run_config=config)
    os.chdir(places["variable"])
    assert not tuner.fit().errors
    assert len(list((places["cwd"] / "r/x").glob("*/checkpoint_*"))) == 2
    (result,) = tune.Tuner.restore(str(places["cwd"] / "r/x"), wanders).fit()
    assert result.metrics["step"] == 1
    assert not any((places[name] / "r").exists() for name in ("elsewhere", "variable", "home"))
