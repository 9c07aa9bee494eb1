from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.meta.repo import ROOT
from tune_sync.homes.home import Piece
from tune_sync.transfer.batch import Batch

MIB = 1 << 20


def test_files_lie_in_a_row() -> None:
    batch = Batch(10)
    batch.add("a", b"12")
    batch.add("empty", b"")
    batch.add("b", bytearray(b"345"))
    assert bytes(batch.data) == b"12345"
    assert batch.pieces == [Piece("a", 0, 2), Piece("empty", 2, 0), Piece("b", 2, 3)]


def test_a_batch_of_empty_files_has_no_bytes() -> None:
    batch = Batch(10)
    batch.add("empty", b"")
    assert bytes(batch.data) == b""


def test_bytes_stay_as_long_as_someone_has_them() -> None:
    batch = Batch(MIB)
    batch.add("a", b"x" * MIB)
    data = batch.data
    del batch
    assert bytes(data) == b"x" * MIB


def test_threads_that_copy_keep_no_memory(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.unit.kept_memory", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) <= 40  # two batches and a little
