"""Ranks that disagree whether a name is a file or a directory: that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tests.unit.test_bucket_commit import C0, staged
from tune_sync.behind.arrivals import Arrivals
from tune_sync.errors import ConfigError, TuneSyncError
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.home import LocalHome
from tune_sync.sending.backlog import Accepted
from tune_sync.testing.memory_bucket import MemoryBucket

FILE, DIRECTORY = {"a": b"of one"}, {"a/b": b"of the other"}


def parts(file_rank: int) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Of rank 0, then of rank 1."""
    return enumerate((FILE, DIRECTORY) if file_rank == 0 else (DIRECTORY, FILE))


def said(file_rank: int) -> str:
    return f"'a' is a file of rank {file_rank} and a directory of rank {1 - file_rank}"


@pytest.mark.parametrize("file_rank", [0, 1])
def test_in_a_directory_it_is_refused_before_anything_moves(tmp_path: Path, file_rank: int) -> None:
    home = LocalHome(tmp_path)
    attempts = [sealed(home.committer, f, rank=n) for n, f in parts(file_rank)]
    with pytest.raises(ConfigError, match=said(file_rank)):
        home.committer.place(CHECKPOINT, attempts=attempts)
    assert home.store.info(CHECKPOINT) is None


@pytest.mark.parametrize("file_rank", [0, 1])
def test_in_a_bucket_it_is_refused_by_the_record(file_rank: int) -> None:
    committer = BucketCommitter(MemoryBucket(), "me")
    attempts = [staged(committer, files, rank) for rank, files in parts(file_rank)]
    placed = committer.place(C0, attempts=attempts)
    with pytest.raises(ConfigError, match=said(file_rank)):
        committer.record(placed.manifest)
    assert committer.manifest(C0) is None


@pytest.mark.parametrize("file_rank", [0, 1])
def test_what_was_staged_is_refused_for_good_when_it_arrives(
    tmp_path: Path, file_rank: int
) -> None:
    home = LocalHome(tmp_path)
    attempts = [sealed(home.committer, f, rank=n) for n, f in parts(file_rank)]
    published: list[str] = []
    refused: dict[str, TuneSyncError] = {}
    arrivals = Arrivals(home, published.append, refused.__setitem__)
    arrivals.publish([Accepted(CHECKPOINT, direct=attempts)])
    assert published == [] and said(file_rank) in str(refused[CHECKPOINT])
