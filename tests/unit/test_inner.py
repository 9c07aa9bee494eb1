"""Which run a trainer inside of a trial belongs to."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ray.train._internal.storage import StorageContext

from tests.unit.restored_run import Here
from tune_sync.errors import ConfigError
from tune_sync.filesystem import open_handler
from tune_sync.inner import _trial_handler
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Address, Options, Spec


class InTrial(Here):
    """A trial's process on the home node."""

    def is_worker(self) -> bool:
        return True


def storage_of(root: Path, experiment: str) -> StorageContext:
    """What a trial's context knows of its run."""
    address = Address("node", "agent")
    spec = Spec(uuid.uuid4().hex, str(root), experiment, "owner", address, Options())
    filesystem = RunFileSystem(open_handler(spec, InTrial()))
    return StorageContext(str(root), experiment, storage_filesystem=filesystem)


def test_the_trials_own_run_counts_and_not_one_whose_checkpoint_is_in_its_config(
    tmp_path: Path,
) -> None:
    other, mine = storage_of(tmp_path, "other"), storage_of(tmp_path, "mine")
    for storage in (mine, other):
        assert _trial_handler(storage) is storage.storage_filesystem.handler
    with pytest.raises(ConfigError, match="inside a trial"):
        _trial_handler(None)
    with pytest.raises(ConfigError, match="inside a trial"):
        _trial_handler(StorageContext(str(tmp_path), "plain"))
