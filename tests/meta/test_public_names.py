from __future__ import annotations

import subprocess
import sys

import pytest

import tune_sync

# What users may import from `tune_sync`. A change here is a change of the public API.
PUBLIC_NAMES = [
    "CallbackSyncer",
    "Checkpoint",
    "CloudSyncer",
    "CommandSyncer",
    "FastPath",
    "ObjectStoreSyncer",
    "Recovery",
    "RunConfig",
    "SharedDirectorySyncer",
    "SyncConfig",
    "Syncer",
    "cleanup",
    "errors",
    "fetch",
    "fetch_experiment",
    "inner_run_config",
    "restore_kwargs",
    "restore_or_start",
    "run_config_kwargs",
    "staged_checkpoint",
    "status",
]


def test_public_names_are_the_pinned_ones() -> None:
    assert sorted(tune_sync.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_loads_and_is_listed_by_dir(name: str) -> None:
    assert getattr(tune_sync, name) is not None
    assert name in dir(tune_sync)


@pytest.mark.parametrize("name", sorted({*PUBLIC_NAMES} - {"errors"}))
def test_no_module_hides_a_public_name(name: str) -> None:
    code = f"from tune_sync import {name}; import types; print(type({name}) is types.ModuleType)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_is_documented(name: str) -> None:
    assert (getattr(tune_sync, name).__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tune_sync.no_such_name


def test_star_import_brings_the_public_names() -> None:
    code = "from tune_sync import *; print(*sorted(n for n in dir() if n[0] != '_'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == PUBLIC_NAMES
