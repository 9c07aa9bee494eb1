"""What cannot work is refused when it is written down, with what to do instead."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tune_sync import (
    CommandSyncer,
    FastPath,
    ObjectStoreSyncer,
    RunConfig,
    SyncConfig,
    Syncer,
    run_config_kwargs,
)
from tune_sync.errors import ConfigError
from tune_sync.syncers.cloud import CloudSyncer
from tune_sync.syncers.shared_directory import SharedDirectorySyncer


class OwnSyncer(Syncer):
    """A syncer that a user wrote."""

    def sync_up(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def sync_down(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def delete(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def retry(self) -> None:
        """Nothing."""

    def wait(self, timeout: float | None = None) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sync_period": 0}, r"sync_period=0\): a number of seconds above zero"),
        ({"sync_period": "5"}, r"sync_period='5'\)"),
        ({"sync_timeout": -1}, r"sync_timeout=-1\)"),
        ({"sync_timeout": True}, r"sync_timeout=True\)"),
        ({"sync_timeout": None}, r"sync_timeout=None\)"),
        ({"sync_timeout": float("nan")}, r"sync_timeout=nan\)"),
        ({"sync_timeout": float("inf")}, r"sync_timeout=inf\): give 1000000000 seconds at most"),
        ({"include": "*.pt"}, r"include='\*.pt'\): a list of patterns"),
        ({"exclude": "*.tmp"}, r"exclude='\*.tmp'\): a list of patterns"),
        ({"exclude": [1]}, r"exclude=\[1\]\): a list of patterns"),
        ({"exclude": 5}, r"exclude=5\): a list of patterns"),
        ({"exclude": None}, r"exclude=None\): a list of patterns"),
        ({"exclude": ["*.tmp", "*"]}, r"exclude=...\): '\*' matches every file of a checkpoint"),
        ({"exclude": ["checkpoint_*/"]}, r"'checkpoint_\*/' matches every file of a checkpoint"),
        ({"exclude": ["*/*"]}, r"'\*/\*' matches every file of a checkpoint"),
        ({"include": ["/abs"]}, r"'/abs' has to be relative"),
        ({"include": [""]}, r"'' has to be relative"),
        ({"include": ["*.png"]}, r"chooses artifacts, and none are synced; add sync_artifacts"),
        ({"syncer": "rsync"}, r"syncer='rsync'\): \"auto\", an ObjectStoreSyncer or None"),
        ({"syncer": 3}, r"syncer=3\)"),
        (
            {"syncer": OwnSyncer()},
            r"OwnSyncer\(...\)\): a syncer of your own needs a place to sync to: give upload_dir",
        ),
        ({"strict": "yes"}, r"strict='yes'\): True or False"),
        ({"sync_artifacts": 1}, r"sync_artifacts=1\): True or False"),
        ({"sync_artifacts_on_checkpoint": None}, r"sync_artifacts_on_checkpoint=None\)"),
    ],
)
def test_sync_config_refuses_values_that_cannot_work(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SyncConfig(**fields)


def test_a_file_url_with_two_slashes_is_refused() -> None:
    with pytest.raises(ConfigError, match="file:///mnt/results"):
        SyncConfig(upload_dir="file://mnt/results")
    for works in ("file:///mnt/results", "file://localhost/mnt/results"):
        assert SyncConfig(upload_dir=works).upload_dir == works


def test_what_works_is_accepted() -> None:
    config = SyncConfig(5, 60.5, True, False, ObjectStoreSyncer(), ["a/*"], ("*.tmp",), True)
    assert (config.include, config.exclude, config.strict) == (("a/*",), ("*.tmp",), True)
    assert SyncConfig(syncer=None).syncer is None


def test_sync_config_is_true_in_code_of_the_users() -> None:
    config = SyncConfig(upload_dir="s3://b/p")
    assert (config or SyncConfig()) is config


def test_syncers_of_old_are_told_what_to_give() -> None:
    for old in ("s3", "aws s3 sync {source} {target}"):
        with pytest.raises(ConfigError, match=r'upload_dir="s3://.*CommandSyncer'):
            SyncConfig(syncer=old)


@pytest.mark.lowest
def test_sync_config_in_rays_own_run_config_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no effect in ray.tune.RunConfig.*run_config_kwargs"):
        tune.RunConfig(sync_config=SyncConfig())
    with pytest.raises(ConfigError, match="no effect"):
        tune.Tuner(train_n, run_config=tune.RunConfig(sync_config=SyncConfig()))


@pytest.mark.lowest
def test_sync_config_in_tune_run_alone_is_refused_before_a_trial_starts(
    local_ray: None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="run_config_kwargs"):
        tune.run(train_n, storage_path=str(tmp_path), name="x", sync_config=SyncConfig(), verbose=0)
    assert not list(tmp_path.rglob("checkpoint_*"))


def test_a_sync_config_used_once_is_still_refused_where_it_has_no_effect(tmp_path: Path) -> None:
    config = SyncConfig()
    RunConfig(storage_path=tmp_path, sync_config=config)
    with pytest.raises(ConfigError, match="no effect"):
        tune.RunConfig(sync_config=config)


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "hdfs://h/x", "memory://x"])
def test_a_bucket_as_storage_path_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"a directory of the driver's node is needed"):
        RunConfig(storage_path=url)
    with pytest.raises(ConfigError, match=r"a directory of the driver's node is needed"):
        run_config_kwargs(storage_path=url)


def test_a_storage_filesystem_of_ones_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="brings its own storage_filesystem"):
        RunConfig(storage_path=tmp_path, storage_filesystem=pafs.LocalFileSystem())


def test_a_sync_config_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a tune_sync.SyncConfig is needed, or one of Ray's"):
        RunConfig(storage_path=tmp_path, sync_config={"sync_period": 5})
    with pytest.raises(ConfigError, match=r"a tune_sync.SyncConfig is needed, or one of Ray's"):
        run_config_kwargs("auto", storage_path=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("callbacks", [tune.Callback(), "mine", {}])
def test_callbacks_that_are_no_list_are_refused(tmp_path: Path, callbacks: Any) -> None:
    with pytest.raises(ConfigError, match=r"RunConfig\(callbacks=.*a list is needed"):
        RunConfig(storage_path=tmp_path, callbacks=callbacks)


def test_rays_sync_config_keeps_its_four_fields(tmp_path: Path) -> None:
    config = RunConfig(storage_path=tmp_path, sync_config=tune.SyncConfig(sync_period=7))
    assert isinstance(config.sync_config, SyncConfig)
    assert (config.sync_config.sync_period, config.sync_config.syncer) == (7, "auto")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/abs", "."])
def test_a_name_that_leaves_the_storage_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="does not stay inside"):
        RunConfig(storage_path=tmp_path, name=name)
    with pytest.raises(ValueError, match="does not stay inside"):
        run_config_kwargs(storage_path=tmp_path, name=name)


def test_run_config_kwargs_refuses_words_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on_existing='append'"):
        run_config_kwargs(storage_path=tmp_path, on_existing="append")
    with pytest.raises(ConfigError, match="api='rllib'"):
        run_config_kwargs(storage_path=tmp_path, api="rllib")


def test_trials_without_our_callback_fail_and_say_what_is_missing(
    local_ray: None, tmp_path: Path
) -> None:
    kwargs = run_config_kwargs(storage_path=tmp_path, name="x")
    kwargs["callbacks"] = []
    analysis = tune.run(
        train_n, config={"settings": {"steps": 1}}, raise_on_failed_trial=False, verbose=0, **kwargs
    )
    (trial,) = analysis.trials
    assert "run_config_kwargs" in Path(trial.error_file).read_text()
    assert not list(tmp_path.rglob("checkpoint_*"))


def test_an_inner_run_config_outside_of_a_trial_is_refused() -> None:
    from tune_sync import inner_run_config

    with pytest.raises(ConfigError, match=r"inside a trial.*run_config_kwargs\(api=\"train\"\)"):
        inner_run_config()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"upload_dir": "s3://b/x", "syncer": None}, "leave one of them out"),
        ({"upload_dir": "/x", "syncer": CloudSyncer()}, "SharedDirectorySyncer is needed"),
        ({"upload_dir": "s3://b/x", "syncer": SharedDirectorySyncer()}, "CloudSyncer is needed"),
        ({"upload_dir": "s3://b/x", "syncer": ObjectStoreSyncer()}, "CloudSyncer is needed"),
        ({"upload_dir": 5}, "a URL or a path"),
        ({"upload_dir": ""}, "a URL or a path"),
        ({"upload_dir": "s3://"}, "s3://bucket/path"),
        ({"upload_dir": "s3://key:secret@b/x"}, "do not belong into the URL"),
        ({"upload_dir": "https://store/b"}, "give s3://bucket/path and storage_opt"),
        ({"upload_dir": "foo://b/x"}, r"foo:// is unknown.*s3:// \(pip install obstore\)"),
        ({"upload_dir": "gs3://b/x"}, r"gs3:// is unknown.*root:// \(pip install fsspec-xrootd\)"),
        ({"upload_dir": "/x", "storage_options": {"key": "k"}}, "no bucket"),
        ({"storage_options": {"key": "k"}}, "no bucket"),
        ({"upload_dir": "s3://b/x", "storage_options": "key"}, "a dict"),
    ],
)
def test_places_that_cannot_work_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SyncConfig(**fields)


@pytest.mark.parametrize("name", ["upload_dir", "storage_path"])
def test_a_place_that_can_be_no_directory_is_refused_before_training(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    reasons = {
        tmp_path / "file": f"{tmp_path}/file is no directory",
        tmp_path / "file/below": f"{tmp_path}/file is no directory",
        Path("/proc/below"): "no directory can be made in /proc",
    }
    for place, why in reasons.items():
        config = RunConfig(name="x", storage_path=place)
        if name == "upload_dir":
            config = RunConfig(name="x", sync_config=SyncConfig(upload_dir=place))
        with pytest.raises(ConfigError, match=f"{why}; give another {name}"):
            tune.Tuner(train_n, run_config=config)


def test_two_places_for_results_are_refused(tmp_path: Path) -> None:
    for place in ("s3://bucket/x", str(tmp_path / "other")):
        config = SyncConfig(upload_dir=place)
        with pytest.raises(ConfigError, match="leave storage_path out"):
            RunConfig(storage_path=tmp_path, sync_config=config)
        with pytest.raises(ConfigError, match="leave storage_path out"):
            run_config_kwargs(config, storage_path=tmp_path)


def test_what_a_built_in_syncer_was_made_with_counts_unless_the_config_says_otherwise() -> None:
    mine = CloudSyncer(storage_options={"key": "mine"}, sync_timeout=60, sync_period=7)
    config = SyncConfig(upload_dir="s3://b/x", syncer=mine)
    found = config.timeout_s, config.period_s, config.bucket_options
    assert found == (60, 7, {"key": "mine"})
    given = {"sync_timeout": 90, "sync_period": 8, "storage_options": {"key": "given"}}
    config = SyncConfig(upload_dir="s3://b/x", syncer=mine, **given)
    found = config.timeout_s, config.period_s, config.bucket_options
    assert found == (90, 8, {"key": "given"})
    assert pickle.loads(pickle.dumps(config)).bucket_options is None


@pytest.mark.parametrize(
    ("fields", "way_out"),
    [
        ({"sync_on_checkpoint": False}, 'add wait_for="staged"'),
        ({"sync_on_checkpoint": False, "wait_for": "stored"}, 'add wait_for="staged"'),
        ({"sync_on_checkpoint": False, "on_sync_error": "continue"}, 'add wait_for="staged"'),
        ({"sync_on_checkpoint": 0, "wait_for": "staged"}, "True or False is needed"),
        ({"max_bandwidth_bytes_per_s": 1}, 'add wait_for="staged"'),
        ({"max_concurrent_transfers": 1}, 'add wait_for="staged"'),
        ({"max_concurrent_transfers": 1, "on_sync_error": "continue"}, 'add wait_for="staged"'),
        ({"max_concurrent_transfers": 0, "wait_for": "staged"}, "above zero"),
        ({"max_bandwidth_bytes_per_s": 1.5, "wait_for": "staged"}, "above zero"),
        ({"max_concurrent_transfers": True, "wait_for": "staged"}, "above zero"),
        ({"staging_limit_bytes": 1e9, "wait_for": "staged"}, "a whole number of bytes above zero"),
    ],
)
def test_limits_and_periods_of_what_is_not_staged_are_refused(
    fields: dict[str, Any], way_out: str
) -> None:
    with pytest.raises(ConfigError, match=way_out) as raised:
        SyncConfig(**fields)
    assert next(iter(fields)) in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"wait_for": "staged"},
        {"wait_for": "replicated", "fast_path": FastPath()},
        {"on_sync_error": "continue"},
        {"sync_on_checkpoint": False, "wait_for": "staged"},
        {"max_concurrent_transfers": 1},
    ],
)
def test_what_is_staged_is_not_for_a_syncer_of_the_users_own(fields: dict[str, Any]) -> None:
    syncer = CommandSyncer("cp {source} {target}", "cp {source} {target}", "rm {target}")
    with pytest.raises(ConfigError, match="leave it out") as raised:
        SyncConfig(upload_dir="far", syncer=syncer, **fields)
    assert all(name in str(raised.value) for name in fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"wait_for": "sent"},
        {"on_sync_error": True},
        {"wait_for": "staged", "staging_dir": "relative"},
        {"wait_for": "staged", "staging_limit_bytes": 0},
        {"staging_limit_bytes": 1},
        {"staging_dir": "/tmp/staging"},
        {"syncer": OwnSyncer(), "upload_dir": "/x", "wait_for": "sent"},
        {"syncer": OwnSyncer(), "upload_dir": "/x", "on_sync_error": True},
        {"syncer": OwnSyncer(), "upload_dir": "/x", "staging_limit_bytes": 0},
        {"syncer": OwnSyncer(), "upload_dir": "/x", "staging_dir": "/tmp/staging"},
    ],
)
def test_what_cannot_be_staged_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(fields)).split("_")[0]):
        SyncConfig(**fields)


@pytest.mark.parametrize("field", [{"staging_limit_bytes": 1}, {"staging_dir": "/tmp/staging"}])
def test_each_way_to_stage_is_told_where_nothing_is(field: dict[str, Any]) -> None:
    ways = '"staged".*"replicated".*fast_path=FastPath.*"continue"'
    with pytest.raises(ConfigError, match=ways):
        SyncConfig(**field)


@pytest.mark.parametrize(
    ("fields", "way_out"),
    [
        ({"fast_path": FastPath()}, 'add wait_for="replicated" or "staged"'),
        ({"wait_for": "replicated"}, "add fast_path=FastPath()"),
        ({"wait_for": "replicated", "on_sync_error": "continue"}, "add fast_path=FastPath()"),
        (
            {"fast_path": FastPath(transport="tcp"), "wait_for": "staged"},
            'add wait_for="replicated", or leave transport out',
        ),
        (
            {"fast_path": FastPath(required=False), "on_sync_error": "continue"},
            'add wait_for="replicated", or leave required out',
        ),
        ({"fast_path": True, "wait_for": "staged"}, "a FastPath is needed"),
        ({"fast_path": FastPath(), "upload_dir": "/x", "syncer": OwnSyncer()}, "leave it out"),
    ],
)
def test_memory_where_nothing_is_staged_is_refused(fields: dict[str, Any], way_out: str) -> None:
    with pytest.raises(ConfigError, match=way_out) as raised:
        SyncConfig(**fields)
    assert "fastpath" in str(raised.value).lower().replace("_", "")


@pytest.mark.parametrize("name", ["memory_limit", "max_checkpoints_in_memory"])
def test_a_limit_of_memory_is_a_whole_number(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=1000000000.0\): a whole number") as raised:
        FastPath(**{name: 1e9})
    assert ("of bytes" in str(raised.value)) == (name == "memory_limit")


def test_failures_are_counted_only_where_a_report_waits_and_may_go_on() -> None:
    going_on = {"on_sync_error": "continue", "max_consecutive_failures": 3}
    assert SyncConfig(**going_on).max_consecutive_failures == 3
    with pytest.raises(ConfigError, match="a whole number above zero"):
        SyncConfig(**{**going_on, "max_consecutive_failures": 0})
    for more in ({"on_sync_error": "raise"}, {"wait_for": "staged"}):
        with pytest.raises(ConfigError, match='give on_sync_error="continue"'):
            SyncConfig(**{**going_on, **more})


@pytest.mark.parametrize("fields", [{"wait_for": "staged"}, {"on_sync_error": "continue"}])
def test_what_is_staged_may_be_in_memory(fields: dict[str, Any]) -> None:
    assert SyncConfig(fast_path=FastPath(), **fields).fast_path == FastPath()


class My(OwnSyncer):
    pass


@pytest.mark.parametrize("syncer", [My, object(), print])
@pytest.mark.parametrize("place", [None, "far", "s3://b/x"])
def test_what_is_no_syncer_is_refused_with_what_is_one(syncer: Any, place: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        SyncConfig(upload_dir=place, syncer=syncer)
    parts = ["CommandSyncer", "CallbackSyncer", "subclass of Syncer"]
    parts += ["My()"] if syncer is My else []
    assert all(part in str(raised.value) for part in parts)


@pytest.mark.parametrize("name", ["x" * 300, "new\nline", "\udc80"])
def test_a_name_that_no_directory_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="an experiment cannot be named"):
        RunConfig(name=name, storage_path=tmp_path)
