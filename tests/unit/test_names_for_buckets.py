"""A name that a bucket cannot keep is refused by the report, also where it only stages the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.unit.test_late_errors import Connected, copy
from tests.unit.test_left_behind import NoAgent
from tune_sync.behind.staging_home import StagingHome
from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import PathRefusedError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.home import LocalHome
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec

NAMES = ("new\nline", "back\\slash", "bell\a/in")


def staging(tmp_path: Path, scheme: str) -> RunFileSystem:
    """A worker's filesystem that stages for a destination of this scheme."""
    (tmp_path / "home/x").mkdir(parents=True)
    destination = LocalHome(tmp_path / "home/x")
    home = StagingHome(destination, tmp_path / "staging/node", NoAgent(), "node1")
    options = Options(wait_for="staged")
    spec = Spec("names", str(tmp_path / "home"), "x", "", None, options, scheme)
    return RunFileSystem(SyncHandler(spec, Connected(home)))  # type: ignore[arg-type]


def source_with(tmp_path: Path, name: str) -> Path:
    file = tmp_path / "source" / name
    file.parent.mkdir(parents=True)
    file.write_text("x")
    (tmp_path / "source/good").write_text("x")
    return tmp_path / "source"


def seals(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "staging").rglob("seal.json"))


@pytest.mark.parametrize("name", NAMES)
def test_by_rays_copy(tmp_path: Path, name: str) -> None:
    filesystem, source = staging(tmp_path, "s3"), source_with(tmp_path, name)
    with pytest.raises(PathRefusedError, match="buckets cannot keep") as failure:
        copy(source, filesystem, 0)
    assert repr(name) in str(failure.value)
    filesystem.handler.barrier()
    assert not seals(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_by_a_checkpoint_of_ours(tmp_path: Path, name: str) -> None:
    filesystem, source = staging(tmp_path, "s3"), source_with(tmp_path, name)
    ours = Checkpoint.from_directory(source)
    target = f"{filesystem.handler.experiment_root}/trial/checkpoint_000000"
    filesystem.create_dir(target)
    with pytest.raises(PathRefusedError, match="buckets cannot keep"):
        pafs.copy_files(
            ours.path, target, source_filesystem=ours.filesystem, destination_filesystem=filesystem
        )
    filesystem.handler.barrier()
    assert not seals(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_keeps_them(tmp_path: Path, name: str) -> None:
    copy(source_with(tmp_path, name), staging(tmp_path, ""), 0)
    assert len(seals(tmp_path)) == 1
