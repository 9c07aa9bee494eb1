"""A field that does not exist is told with those that do."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tune_sync import FastPath, RunConfig, SyncConfig, run_config_kwargs
from tune_sync.errors import ConfigError, UnknownFieldError

SLIPS = [
    (SyncConfig, "upload_dri", "upload_dir"),
    (RunConfig, "sync_conf", "sync_config"),
    (FastPath, "memory_limits", "memory_limit"),
]

REFUSED = ("local_dir", "storage_filesystem")


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_raises_an_error_is_not_offered(name: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DeprecationWarning)):
        RunConfig(**{name: str(tmp_path)})
    with pytest.raises(UnknownFieldError) as raised:
        RunConfig(**{f"{name}s": str(tmp_path)})
    assert name not in str(raised.value).replace(f"{name}s", "")


@pytest.mark.parametrize(("kind", "slip", "meant"), SLIPS)
def test_a_misspelt_field_is_told_with_what_may_be_meant_and_all_that_there_are(
    kind: Any, slip: str, meant: str
) -> None:
    with pytest.raises(UnknownFieldError) as raised:
        kind(**{slip: "secret"})
    said = str(raised.value)
    assert said.startswith(f"{kind.__name__}({slip}=...): no such field; did you mean {meant}? ")
    named = [each.name for each in fields(kind) if each.init and each.name not in REFUSED]
    assert said.endswith(f"Its fields are {', '.join(named)}")
    assert "secret" not in said and "_accepted" not in said
    assert isinstance(raised.value, TypeError) and isinstance(raised.value, ConfigError)


def test_what_is_near_to_nothing_is_told_with_the_fields_alone() -> None:
    with pytest.raises(
        TypeError, match=r"^SyncConfig\(xyz=\.\.\., q=\.\.\.\): no such field; its "
    ):
        SyncConfig(xyz=1, q=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (RunConfig, {"upload_dir": "x"},
         "it is a field of SyncConfig: RunConfig(sync_config=SyncConfig(upload_dir=...))"),
        (RunConfig, {"memory_limit": 1, "tls": None},
         "they are fields of FastPath: SyncConfig(fast_path=FastPath(memory_limit=..., tls=...))"),
        (SyncConfig, {"storage_path": "x"},
         "it is a field of RunConfig: RunConfig(storage_path=...)"),
        (SyncConfig, {"memory_limit": 1},
         "it is a field of FastPath: SyncConfig(fast_path=FastPath(memory_limit=...))"),
        (RunConfig, {"max_failures": 3},
         ("it is a field of FailureConfig: "
          "RunConfig(failure_config=tune.FailureConfig(max_failures=...))")),
        (SyncConfig, {"num_to_keep": 3, "checkpoint_at_end": True},
         ("they are fields of CheckpointConfig: RunConfig(checkpoint_config="
          "tune.CheckpointConfig(num_to_keep=..., checkpoint_at_end=...))")),
        (RunConfig, {"fail_fast": True, "upload_dir": "x"},
         ("fail_fast is a field of FailureConfig: "
          "RunConfig(failure_config=tune.FailureConfig(fail_fast=...)); upload_dir is a field of "
          "SyncConfig: RunConfig(sync_config=SyncConfig(upload_dir=...))")),
        (FastPath, {"wait_for": "staged"},
         "it is a field of SyncConfig: RunConfig(sync_config=SyncConfig(wait_for=...))"),
    ],
)  # fmt: skip
def test_a_field_of_another_class_is_told_with_where_it_goes(
    kind: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownFieldError) as raised:
        kind(**given)
    assert str(raised.value).endswith(f": no such field; {said}")


@pytest.mark.parametrize("kind", [SyncConfig, tune.SyncConfig])
@pytest.mark.parametrize("before", [(), ("x",), ("x", "/tmp"), ("x", "/tmp", None)])
def test_settings_that_came_into_the_place_of_others_are_told_without_their_fields(
    before: tuple[Any, ...], kind: Any
) -> None:
    with pytest.raises(ConfigError) as raised:
        RunConfig(*before, kind())
    given = ("name", "storage_path", "storage_filesystem", "failure_config")[len(before)]
    assert str(raised.value) == (
        f"RunConfig({given}=SyncConfig(...)): sync_config= is missing before it: "
        "RunConfig(sync_config=SyncConfig(...))"
    )


def test_what_is_known_is_built_copied_and_pickled_as_ever(tmp_path: Path) -> None:
    config = replace(SyncConfig(5, strict=True), wait_for="staged", fast_path=FastPath(1000))
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert (twin.sync_period, twin.strict, twin.fast_path) == (5, True, FastPath(1000))
    run = RunConfig(name="x", storage_path=tmp_path, sync_config=config)
    assert replace(run, name="y").name == "y"
    assert run_config_kwargs(config, storage_path=tmp_path)["sync_config"].strict
    with pytest.raises(UnknownFieldError, match="did you mean sync_config"):
        replace(run, sync_conf=config)  # type: ignore[call-arg]
    assert "upload_dir" in inspect.signature(SyncConfig).parameters


@pytest.mark.parametrize("name", ["..", ".", "group/../exp", "/exp", "exp/"])
def test_a_name_that_leaves_its_directory_is_told_as_the_field(name: str) -> None:
    with pytest.raises(ConfigError, match="RunConfig\\(name='"):
        RunConfig(name=name)


def test_a_place_in_the_place_of_a_period_is_told_to_be_named() -> None:
    """Ray's first field was upload_dir, up to 2.6. The place may hold a secret."""
    with pytest.raises(ConfigError, match=r"SyncConfig\(upload_dir=\.\.\.\)") as raised:
        SyncConfig("s3://key:secret@bucket/path")  # type: ignore[arg-type]
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("pattern", ["./plots/*", "../x", "plots/./*"])
def test_a_pattern_that_can_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"SyncConfig\(exclude=...\): '.*' matches nothing"):
        SyncConfig(exclude=[pattern])


def test_a_class_of_rays_in_the_place_of_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"failure_config=.*an object of Ray's is needed"):
        RunConfig(failure_config=tune.FailureConfig)
