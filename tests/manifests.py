"""What is published in an experiment, for tests that look at it as a whole."""

from __future__ import annotations

from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.commit import Committer
from tune_sync.homes.recorded import recorded
from tune_sync.manifest import Manifest


def manifests_of(committer: Committer | BucketCommitter) -> list[Manifest]:
    """Of all published checkpoints, in the order of their keys."""
    if isinstance(committer, BucketCommitter):
        keys = committer.recorded()
    else:
        keys = list(recorded(committer.store))
    return [found for key in keys if (found := committer.manifest(key)) is not None]
