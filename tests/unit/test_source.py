"""Directories as the source of a report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.fs as pafs
import pytest
import ray.cloudpickle
import ray.tune

from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import ConfigError
from tune_sync.source import GivenHandler, SourceHandler

KINDS = (Checkpoint, ray.tune.Checkpoint)


@pytest.mark.parametrize("kind", [SourceHandler, GivenHandler])
def test_a_directory_that_is_gone_is_not_reported_as_empty(
    tmp_path: Path, kind: type[SourceHandler]
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    source, target = pafs.PyFileSystem(kind(made)), pafs.LocalFileSystem()
    (made / "model").write_bytes(b"bytes")
    shutil.rmtree(made)
    with pytest.raises(FileNotFoundError, match=r"inside the .with. block"):
        pafs.copy_files(str(made), str(tmp_path / "there"), source, target)


def test_a_checkpoint_of_a_directory_takes_metadata(tmp_path: Path) -> None:
    """As Ray's own: they lie in the directory, and travel with it."""
    for name in ("made", "there"):
        (tmp_path / name).mkdir()
    checkpoint, plain = (kind.from_directory(tmp_path / "made") for kind in KINDS)
    checkpoint.set_metadata({"epoch": 1})
    checkpoint.update_metadata({"of": "a"})
    assert checkpoint.get_metadata() == plain.get_metadata() == {"epoch": 1, "of": "a"}
    target = pafs.LocalFileSystem()
    pafs.copy_files(checkpoint.path, str(tmp_path / "there"), checkpoint.filesystem, target)
    assert ray.tune.Checkpoint(str(tmp_path / "there")).get_metadata() == {"epoch": 1, "of": "a"}


def test_two_copies_of_one_checkpoint_are_read_into_directories_of_their_own(
    tmp_path: Path,
) -> None:
    """Two processes of a node that read at once: none removes what the other still reads."""
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored/model").write_bytes(b"bytes")
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())  # Ray copies from it
    pickled = ray.cloudpickle.dumps(Checkpoint("stored", filesystem=filesystem))
    one, two = (ray.cloudpickle.loads(pickled) for _ in range(2))
    with one.as_directory() as first:
        with two.as_directory() as second:
            assert second != first
            Path(second, "model").unlink()
        assert Path(first, "model").read_bytes() == b"bytes"
        assert not Path(second).exists()


def test_nothing_else_than_metadata_is_written(tmp_path: Path) -> None:
    source = pafs.PyFileSystem(SourceHandler(tmp_path))
    for name in ("model", "a/.metadata.json", "../.metadata.json"):
        with pytest.raises(ConfigError, match="only read"):
            source.open_output_stream(f"{tmp_path}/{name}")
