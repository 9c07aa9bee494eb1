"""What is damaged of one attempt at a checkpoint hides no other one, and is not thrown away."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.manifests import manifests_of
from tests.unit.staged import CHECKPOINT, sealed
from tests.unit.test_bucket_commit import staged
from tune_sync import layout
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.commit import Committer
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.store import LocalStore
from tune_sync.manifest import Seal
from tune_sync.testing.memory_bucket import MemoryBucket

DAMAGES = ("seal", "data", "file")


@pytest.fixture
def committer(tmp_path: Path) -> Committer:
    return Committer(LocalStore(tmp_path))


def damage(committer: Committer, what: str, attempt: str) -> None:
    data = layout.staged_key(CHECKPOINT, attempt)
    if what == "seal":
        seal = layout.seal_key(CHECKPOINT, attempt)
        committer.store.remove(seal)
        committer.store.write_at(seal, 0, b"\0" * 200)
    elif what == "data":
        committer.store.remove_tree(data)
    else:
        (file,) = committer.store.list(data)
        committer.store.remove(file.key)


def sent_twice(committer: Committer) -> list[list[str]]:
    """Attempts of two ranks, of each two of one name, as agents send them behind a dead driver."""
    attempts = []
    for rank in range(2):
        files = {f"rank{rank}": b"x"}
        attempts.append([sealed(committer, files, ranks_count=2, rank=rank) for _ in range(2)])
        for second, attempt in enumerate(attempts[rank]):
            (seal,) = (s for s in committer._seals(CHECKPOINT) if s.attempt == attempt)
            told = replace(seal, staged_as=f"n{rank}", parts=("n0", "n1"), sealed_s=1.0 + second)
            committer.seal(CHECKPOINT, told)
    return attempts


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("which", [0, 1])
def test_the_whole_one_of_two_attempts_is_published(
    committer: Committer, what: str, which: int
) -> None:
    attempts = [sealed(committer, {"model": b"1"}, ranks_count=1) for _ in range(2)]
    damage(committer, what, attempts[which])
    assert committer.recover().completed == (CHECKPOINT,)
    (manifest,) = manifests_of(committer)
    assert [file.path for file in manifest.files] == ["model"]
    assert not committer.store.list(layout.STAGING_DIR)


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("which", itertools.product([0, 1], [0, 1]))
def test_of_each_rank_the_whole_one_of_two_attempts_is_taken(
    committer: Committer, what: str, which: tuple[int, int]
) -> None:
    attempts = sent_twice(committer)
    for rank, second in enumerate(which):
        damage(committer, what, attempts[rank][second])
    assert committer.recover().completed == (CHECKPOINT,)
    (manifest,) = manifests_of(committer)
    assert [file.path for file in manifest.files] == ["rank0", "rank1"]


@pytest.mark.parametrize("what", ["data", "file"])
def test_what_is_not_there_is_dropped_and_that_is_said(
    committer: Committer, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(committer, what, sealed(committer, {"model": b"1"}, ranks_count=1))
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover().dropped == (CHECKPOINT,)
    assert f"cannot finish publishing {CHECKPOINT}" in caplog.text


def test_a_seal_that_cannot_be_read_is_told_and_kept_with_its_bytes(
    committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = sealed(committer, {"model": b"1"}, ranks_count=1)
    damage(committer, "seal", attempt)
    other = "trial/checkpoint_000001"
    sealed(committer, {"half": b"1"}, other)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ray.tune_sync"):
            recovery = committer.recover()
        assert f"{layout.seal_key(CHECKPOINT, attempt)} is not JSON" in caplog.text
        assert (recovery.completed, recovery.kept) == ((), (CHECKPOINT,))
        data = layout.staged_key(CHECKPOINT, attempt)
        assert committer.store.read(f"{data}/model") == b"1"
        assert not committer.store.list(f"{layout.STAGING_DIR}/{other}")


def test_what_was_reported_is_placed_beside_a_seal_that_cannot_be_read(
    committer: Committer,
) -> None:
    given_up, reported = (sealed(committer, {"model": b"1"}) for _ in range(2))
    damage(committer, "seal", given_up)
    committer.record(committer.place(CHECKPOINT, attempts=[reported]).manifest)
    assert len(manifests_of(committer)) == 1


@pytest.mark.parametrize("is_retired", [True, False])
def test_an_empty_checkpoint_that_is_gone_before_it_was_recorded_stays_gone(
    committer: Committer, is_retired: bool
) -> None:
    attempt = committer.begin(CHECKPOINT)
    committer.seal(CHECKPOINT, Seal(attempt, 0, 1.0, (), (), 1))
    committer.place(CHECKPOINT, attempts=[attempt])
    if is_retired:
        committer.retire(CHECKPOINT)
    else:
        committer.store.remove_tree(CHECKPOINT)
    assert committer.recover().dropped == (CHECKPOINT,)
    assert not committer.store.list(layout.STAGING_DIR)


@pytest.mark.parametrize("body", [b"", pytest.param(b"[" * 100_000, id="deep")])
def test_a_note_of_what_was_reported_that_cannot_be_read_is_told(
    committer: Committer, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    sealed(committer, {"model": b"1"}, ranks_count=1)
    key = layout.reported_key(CHECKPOINT)
    committer.store.make_dir(layout.parent(key))
    committer.store.write_at(key, 0, body)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover().completed == (CHECKPOINT,)
    assert f"{key} is not readable" in caplog.text


class Overtaken(LocalStore):
    """Just before staging is taken away, another recovery does that."""

    def rename(self, source: str, target: str) -> None:
        if source == f"{layout.STAGING_DIR}/{CHECKPOINT}":
            Committer(LocalStore(self.root)).recover()
        super().rename(source, target)


def test_staging_that_another_one_has_taken_away_is_in_nobodys_way(tmp_path: Path) -> None:
    committer = Committer(Overtaken(tmp_path))
    attempt = sealed(committer, {"model": b"1"})
    committer.record(committer.place(CHECKPOINT, attempts=[attempt]).manifest)
    assert len(manifests_of(committer)) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_in_a_bucket_the_attempt_whose_seal_can_be_read_is_published(which: int) -> None:
    committer = BucketCommitter(MemoryBucket())
    attempts = [staged(committer, {"model": b"1"}) for _ in range(2)]
    for part in committer._parts(CHECKPOINT, attempts):
        committer.seal(CHECKPOINT, replace(part.seal, ranks_count=1), part.etags)
    committer.bucket.put(layout.seal_key(CHECKPOINT, attempts[which]), b"\0" * 200)
    assert BucketCommitter(committer.bucket).recover().completed == (CHECKPOINT,)


def test_in_a_bucket_a_seal_that_cannot_be_read_is_told_and_kept_with_its_objects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer = BucketCommitter(MemoryBucket())
    key = layout.seal_key(CHECKPOINT, staged(committer, {"model": b"1"}))
    committer.bucket.put(key, b"\0" * 200)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ray.tune_sync"):
            recovery = BucketCommitter(committer.bucket).recover()
        assert recovery == Recovery((), (), kept=(CHECKPOINT,))
        assert f"{key} is not JSON" in caplog.text
        assert committer.bucket.get(f"{CHECKPOINT}/model") == b"1"
