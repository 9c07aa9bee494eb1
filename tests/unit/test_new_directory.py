"""A new directory, of an experiment or of staging, does not go with all in it with the power."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash_staging.kernel import Kernel
from tune_sync import layout
from tune_sync.behind.left_behind import mark_as
from tune_sync.homes.sites import LocalSite
from tune_sync.testing.crash_store import CrashStore


@pytest.mark.parametrize(
    ("made", "exp"),
    [("", "results/exp"), ("results", "results/exp"), ("results/exp", "results/exp"),
     ("", "all/of/it/is/new/exp")],
)  # fmt: skip
def test_what_is_durable_in_it_is_there_after_a_power_cut(
    tmp_path: Path, made: str, exp: str
) -> None:
    disk, root = CrashStore(), tmp_path / "host" / exp
    (tmp_path / "host").mkdir()
    with Kernel(tmp_path, disks={"host": disk}).running():
        (tmp_path / "host" / made).mkdir(parents=True, exist_ok=True)  # as Ray may do before
        LocalSite(root).prepare()
    assert (root / layout.FORMAT_KEY).is_file()
    assert disk.crash("lose").info(f"{exp}/{layout.FORMAT_KEY}") is not None


def test_what_is_marked_as_staged_is_found_after_a_power_cut(tmp_path: Path) -> None:
    disk, root = CrashStore(), tmp_path / "host/all/of/it/is/new/run/node"
    (tmp_path / "host").mkdir()
    with Kernel(tmp_path, disks={"host": disk}).running():
        mark = mark_as(root, "/results/exp")
    assert disk.crash("lose").info(str(mark.relative_to(tmp_path / "host"))) is not None
