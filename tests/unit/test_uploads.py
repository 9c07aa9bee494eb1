"""What a process knows of the attempts of others."""

from __future__ import annotations

from tune_sync.uploads import CHECKPOINTS_KEPT, Uploads

RANK_COUNT = 8


def report(worker: Uploads, coordinator: Uploads, checkpoint: str, attempt: str) -> None:
    """A worker seals an attempt, and pickles all that it knows with its report."""
    worker.heard_of([(checkpoint, attempt)])
    coordinator.heard_of(worker.reported())


def test_the_parts_of_all_ranks_are_known_however_often_they_reported() -> None:
    coordinator, workers = Uploads(), [Uploads() for _ in range(RANK_COUNT)]
    for step in range(3 * CHECKPOINTS_KEPT):
        checkpoint = f"trial/checkpoint_{step:06d}"
        for rank, worker in enumerate(workers):
            report(worker, coordinator, checkpoint, f"{step}-{rank}")
        assert sorted(coordinator.take(checkpoint)) == [f"{step}-{r}" for r in range(RANK_COUNT)]


def test_what_is_remembered_is_bounded() -> None:
    uploads = Uploads()
    for step in range(10 * CHECKPOINTS_KEPT):
        uploads.heard_of([(f"trial/checkpoint_{step:06d}", "attempt")])
    assert len(uploads.reported()) == CHECKPOINTS_KEPT


def test_what_is_taken_is_forgotten() -> None:
    uploads = Uploads()
    uploads.heard_of([("trial/checkpoint_000000", "a"), ("trial/checkpoint_000000", "b")])
    assert uploads.take("trial/checkpoint_000000") == ["a", "b"]
    assert uploads.take("trial/checkpoint_000000") == []
