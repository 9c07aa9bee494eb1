"""A power cut that left a checkpoint visible, and of its intent nothing, or an empty file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tune_sync import layout
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.manifest import Manifest, Seal, to_json

FILES = {"model": b"weights", "deep/er/more": b"more", "deep/empty": b""}
METRICS = {"loss": 0.5}


@pytest.fixture
def committer(tmp_path: Path) -> Committer:
    return Committer(LocalStore(tmp_path), "next owner")


def lose_intent(committer: Committer) -> None:
    (intent,) = committer._intents(CHECKPOINT)
    committer.store.remove(intent)
    committer.store.write_at(intent, 0, b"")


def parts(committer: Committer, ranks_count: int) -> list[Seal]:
    """Seals of as many ranks; they disagree about no file."""
    for rank in range(ranks_count):
        files = {f"rank{rank}": b"of one"} | (FILES if rank == 0 else {"model": b"weights"})
        sealed(committer, files, ranks_count=ranks_count, rank=rank)
    for seal in committer._seals(CHECKPOINT):
        above = {p.path.rsplit("/", n)[0] for p in seal.files for n in (1, 2) if "/" in p.path}
        known = replace(seal, metrics=METRICS, directories=tuple(sorted(above)))
        committer.seal(CHECKPOINT, known)
    return sorted(committer._seals(CHECKPOINT), key=lambda seal: seal.rank)


def visible(committer: Committer, *, ranks_count: int = 1) -> Manifest:
    """Place a checkpoint, and lose its intent."""
    parts(committer, ranks_count)
    manifest = committer.place(CHECKPOINT).manifest
    lose_intent(committer)
    return manifest


@pytest.mark.parametrize("ranks_count", [1, 2])
def test_it_is_recorded_with_what_the_seals_tell(committer: Committer, ranks_count: int) -> None:
    manifest = visible(committer, ranks_count=ranks_count)
    assert committer.recover().completed == (CHECKPOINT,)
    found = committer.manifest(CHECKPOINT)
    assert found is not None and found.metrics == METRICS
    assert (found.files, found.directories) == (manifest.files, manifest.directories)


def test_it_is_recorded_if_its_trial_ended_before_that(committer: Committer) -> None:
    parts(committer, 2)
    committer.place(CHECKPOINT)
    for checkpoint, attempt in committer.attempts("trial"):  # as `Run.discard_staged` does
        committer.discard_attempt(checkpoint, attempt)
    lose_intent(committer)
    assert committer.recover().completed == (CHECKPOINT,)


@pytest.mark.parametrize("change", ["another byte", "one file less", "one file more"])
def test_it_is_not_recorded_if_it_is_not_what_was_sealed(committer: Committer, change: str) -> None:
    visible(committer)
    if change == "another byte":
        committer.store.write_at(f"{CHECKPOINT}/model", 0, b"W")
    elif change == "one file less":
        committer.store.remove(f"{CHECKPOINT}/deep/empty")
    else:
        committer.store.write_at(f"{CHECKPOINT}/another", 0, b"")
    assert committer.recover().dropped == (CHECKPOINT,)
    assert committer.manifest(CHECKPOINT) is None
    assert committer.store.info(CHECKPOINT) is not None


def test_the_manifest_that_is_there_already_stays(committer: Committer) -> None:
    manifest = visible(committer)
    recorded = replace(manifest, metrics={"loss": 0.25})
    key = layout.manifest_key(CHECKPOINT)
    committer.store.make_dir(layout.parent(key))
    committer.store.write_at(key, 0, to_json(recorded))
    assert committer.recover().completed == (CHECKPOINT,)
    assert committer.manifest(CHECKPOINT) == recorded


def stray(committer: Committer, rank: int, files: dict[str, bytes], sealed_s: float) -> None:
    """A part of the same checkpoint which its writer reported to nobody."""
    attempt = sealed(committer, files, ranks_count=3, rank=rank)
    (seal,) = (s for s in committer._seals(CHECKPOINT) if s.attempt == attempt)
    committer.seal(CHECKPOINT, replace(seal, sealed_s=sealed_s))


@pytest.mark.parametrize("sealed_s", [0.5, 2.0])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("files", [{"rank1": b"OF 1"}, {"other": b""}, {"model": b"another"}])
def test_parts_that_nobody_reported_hide_nothing(
    committer: Committer, rank: int, files: dict[str, bytes], sealed_s: float
) -> None:
    # Placed are those of ranks 0 and 1; the stray one may be of either, or of a third.
    attempts = [s.attempt for s in parts(committer, 2)]
    stray(committer, rank, files, sealed_s)
    manifest = committer.place(CHECKPOINT, attempts=attempts).manifest
    lose_intent(committer)
    assert committer.recover().completed == (CHECKPOINT,)
    found = committer.manifest(CHECKPOINT)
    assert found is not None and found.metrics == METRICS
    assert (found.files, found.directories) == (manifest.files, manifest.directories)


def test_a_rank_that_did_not_report_is_not_waited_for(committer: Committer) -> None:
    first, _ = parts(committer, 2)
    manifest = committer.place(CHECKPOINT, attempts=[first.attempt]).manifest
    lose_intent(committer)
    assert committer.recover().completed == (CHECKPOINT,)
    found = committer.manifest(CHECKPOINT)
    assert found is not None and found.files == manifest.files


@pytest.mark.parametrize("lost", ["rank1", "another byte", "added"])
def test_what_no_parts_make_is_not_recorded(committer: Committer, lost: str) -> None:
    both = parts(committer, 2)
    stray(committer, 1, {"rank1": b"OF 1"}, 2.0)
    committer.place(CHECKPOINT, attempts=[part.attempt for part in both])
    lose_intent(committer)
    if lost == "added":
        committer.store.write_at(f"{CHECKPOINT}/added", 0, b"")
    elif lost == "rank1":
        committer.store.write_at(f"{CHECKPOINT}/rank1", 0, b"?")
    else:
        committer.store.write_at(f"{CHECKPOINT}/model", 0, b"W")
    assert committer.recover().dropped == (CHECKPOINT,)
    assert committer.manifest(CHECKPOINT) is None
