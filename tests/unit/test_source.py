"""Directories as the source of a report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tune_sync.source import GivenHandler, SourceHandler


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
