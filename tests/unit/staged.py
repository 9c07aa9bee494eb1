"""Checkpoints in the making, for tests of what happens to them."""

from __future__ import annotations

from collections.abc import Mapping

from tune_sync.homes.commit import Committer
from tune_sync.homes.digests import digest_of
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Manifest, Seal

CHECKPOINT = "trial/checkpoint_000000"


def sealed(
    committer: Committer, files: Mapping[str, bytes], checkpoint: str = CHECKPOINT,
    ranks_count: int | None = None, rank: int = 0,
) -> str:  # fmt: skip
    """Stage and seal a checkpoint; returns its attempt."""
    attempt = committer.begin(checkpoint)
    entries = []
    for path, data in files.items():
        key = f"{staged_key(checkpoint, attempt)}/{path}"
        committer.store.make_dir(key.rpartition("/")[0])
        committer.store.write_at(key, 0, data)
        entries.append(FileEntry(path, len(data), digest_of(data)))
    committer.seal(checkpoint, Seal(attempt, rank, 1.0, tuple(entries), (), ranks_count))
    return attempt


def placed(
    committer: Committer, files: Mapping[str, bytes], checkpoint: str = CHECKPOINT
) -> Manifest:
    """Stage, seal and place a checkpoint; returns the manifest to record."""
    sealed(committer, files, checkpoint)
    return committer.place(checkpoint).manifest
