"""Parts of several writers become one checkpoint."""

from __future__ import annotations

import itertools

import pytest

from tune_sync.errors import ConfigError, NotWholeError
from tune_sync.manifest import FileEntry, Seal, unite

CHECKPOINT = "trial_a/checkpoint_000000"


def entry(path: str, digest: str = "d") -> FileEntry:
    return FileEntry(path, 1, digest)


def seal(
    rank: int, *files: FileEntry, sealed_s: float = 0.0, directories: tuple[str, ...] = ()
) -> Seal:
    return Seal(f"attempt-{rank}-{sealed_s}", rank, sealed_s, files, directories)


def test_one_writer_moves_nothing() -> None:
    union = unite(
        CHECKPOINT, [seal(0, entry("b"), entry("a"), directories=("z", "y"))], strict=True
    )
    assert [file.path for file in union.files] == ["a", "b"]
    assert union.directories == ("y", "z")
    assert union.moves == () and union.conflicts == ()


def test_files_of_all_ranks_are_there_and_equal_ones_once() -> None:
    seals = [
        seal(0, entry("same"), entry("zero"), directories=("d",)),
        seal(1, entry("same"), entry("one"), directories=("d", "e")),
    ]
    for order in itertools.permutations(seals):
        union = unite(CHECKPOINT, order, strict=True)
        assert [file.path for file in union.files] == ["one", "same", "zero"]
        assert union.moves == (("attempt-1-0.0", "one"),)
        assert union.directories == ("d", "e") and union.conflicts == ()
        assert [part.rank for part in union.seals] == [0, 1]


def test_the_lowest_rank_wins_a_name_whatever_the_order() -> None:
    seals = [
        seal(rank, entry("model", f"of rank {rank}"), sealed_s=sealed_s)
        for rank, sealed_s in ((1, 3.0), (2, 1.0), (5, 2.0))
    ]
    for order in itertools.permutations(seals):
        union = unite(CHECKPOINT, order, strict=False)
        assert union.files == (entry("model", "of rank 1"),)
        assert union.conflicts == (("model", 1, 2), ("model", 1, 5))
        assert union.moves == ()


def test_strict_refuses_a_conflict_and_names_both_ranks() -> None:
    seals = [seal(3, entry("model", "x")), seal(1, entry("model", "y"))]
    with pytest.raises(ConfigError, match=r"ranks 1 and 3 .*'model'.*checkpoint_000000"):
        unite(CHECKPOINT, seals, strict=True)


def test_the_newest_seal_of_a_rank_wins_whatever_the_order() -> None:
    seals = [
        seal(0, entry("first"), sealed_s=1.0),
        seal(0, entry("third"), sealed_s=3.0),
        seal(0, entry("second"), sealed_s=2.0),
        seal(1, entry("other"), sealed_s=1.5),
    ]
    for order in itertools.permutations(seals):
        union = unite(CHECKPOINT, order, strict=True)
        assert [file.path for file in union.files] == ["other", "third"]
        assert union.seals[0].attempt == "attempt-0-3.0"


def test_the_lowest_rank_need_not_be_0() -> None:
    union = unite(CHECKPOINT, [seal(4, entry("a")), seal(2, entry("b"))], strict=True)
    assert union.seals[0].rank == 2 and union.moves == (("attempt-4-0.0", "a"),)


def test_nothing_sealed_is_not_whole() -> None:
    with pytest.raises(NotWholeError, match=CHECKPOINT):
        unite(CHECKPOINT, [], strict=False)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("file_rank", [0, 1])
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_file_of_one_rank_that_is_a_directory_of_another_is_refused_by_name(
    file_rank: int, is_listed: bool, strict: bool
) -> None:
    directories = ("d", "d/a") if is_listed else ()
    one = seal(file_rank, entry("d/a"), directories=("d",))
    other = seal(1 - file_rank, entry("d/a/deep/b"), directories=directories)
    message = rf"'d/a' is a file of rank {file_rank} and a directory of rank {1 - file_rank}"
    with pytest.raises(ConfigError, match=rf"{CHECKPOINT}: {message}.*its own names"):
        unite(CHECKPOINT, [one, other], strict=strict)


def test_a_rank_that_was_tried_again_does_not_clash_with_its_earlier_try() -> None:
    seals = [seal(0, entry("a"), sealed_s=1.0), seal(0, entry("a/b"), sealed_s=2.0)]
    assert unite(CHECKPOINT, seals, strict=True).files == (entry("a/b"),)
