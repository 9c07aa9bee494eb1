"""Which run a trainer inside of a trial belongs to."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.unit.restored_run import Here
from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler, open_handler
from tune_sync.inner import _trial_handler
from tune_sync.spec import Address, Options, Spec


class InTrial(Here):
    """A trial's process on the home node."""

    def is_worker(self) -> bool:
        return True


def opened(root: Path, experiment: str) -> SyncHandler:
    address = Address("node", "agent")
    spec = Spec(uuid.uuid4().hex, str(root), experiment, "owner", address, Options())
    return open_handler(spec, InTrial())


def test_the_trials_own_run_counts_and_not_one_whose_checkpoint_is_in_its_config(
    tmp_path: Path,
) -> None:
    other, mine = opened(tmp_path, "other"), opened(tmp_path, "mine")
    assert _trial_handler(f"{tmp_path}/mine/trial") is mine
    assert _trial_handler(f"{tmp_path}/other/trial") is other
    with pytest.raises(ConfigError, match="inside a trial"):
        _trial_handler("")
