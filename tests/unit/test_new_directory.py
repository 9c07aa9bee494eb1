"""The directory of a new experiment does not go with all that is in it when the power goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash_staging.kernel import Kernel
from tune_sync import layout
from tune_sync.homes.sites import LocalSite
from tune_sync.testing.crash_store import CrashStore


@pytest.mark.parametrize("made", ["", "results", "results/exp"])
def test_what_is_durable_in_it_is_there_after_a_power_cut(tmp_path: Path, made: str) -> None:
    disk, root = CrashStore(), tmp_path / "host/results/exp"
    (tmp_path / "host").mkdir()
    with Kernel(tmp_path, disks={"host": disk}).running():
        (tmp_path / "host" / made).mkdir(parents=True, exist_ok=True)  # as Ray may do before
        LocalSite(root).prepare()
    assert (root / layout.FORMAT_KEY).is_file()
    assert disk.crash("lose").info(f"results/exp/{layout.FORMAT_KEY}") is not None
