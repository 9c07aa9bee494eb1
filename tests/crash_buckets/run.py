"""A run that drives a committer on a bucket as the product does, and keeps the ledger."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import xxhash

from tests.crash.ledger import Contents, Ledger, with_directories
from tests.crash.steps import Steps
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.manifest import FileEntry, Manifest, Seal
from tune_sync.testing.memory_bucket import MemoryBucket

STATE_KEY = "experiment_state.json"

MakeCommitter = Callable[..., BucketCommitter]


class Run(Steps):
    """Steps of scenarios.

    Args:
        bucket: Where; may fail or crash.
        ledger: Filled as promises are made.
        make_committer: The committer class, or a wrong one.
        etags: Whether seals know the e-tags.
    """

    def __init__(
        self, bucket: MemoryBucket, ledger: Ledger, make_committer: MakeCommitter = BucketCommitter,
        *, etags: bool = True,
    ) -> None:  # fmt: skip
        numbers = itertools.count(100)
        self.bucket = bucket
        self.ledger = ledger
        self.etags = etags
        self.placed: dict[str, Manifest] = {}
        self.clock = itertools.count(1)
        self.committer = make_committer(
            bucket, "owner", clock=lambda: float(next(self.clock)),
            new_id=lambda: f"id{next(numbers)}",
        )  # fmt: skip

    def publish(self, checkpoint: str, contents: Contents) -> None:
        """All the way: stage, place, record."""
        attempt = self.stage(checkpoint, contents)
        self.place(checkpoint, contents, [attempt])
        self.record(checkpoint)

    def stage(
        self, checkpoint: str, contents: Contents, *, rank: int = 0,
        first_seal: Sequence[str] = (), ranks_count: int | None = None, **known: Any,
    ) -> str:  # fmt: skip
        """Write an attempt and seal it; before that, seal only `first_seal` of it, if given."""
        attempt = ""
        if ranks_count == 1:
            self.ledger.place_begins(checkpoint, with_directories(contents))

        def act() -> None:
            nonlocal attempt
            attempt, etags = self.write(checkpoint, contents)
            if first_seal:
                part = {path: contents[path] for path in first_seal}
                self.seal(checkpoint, attempt, part, rank, etags)
            self.seal(checkpoint, attempt, contents, rank, etags, ranks_count, **known)

        self.do(act)
        return attempt

    def write(self, checkpoint: str, contents: Contents) -> tuple[str, dict[str, str]]:
        """Write an attempt without sealing it; returns its id and its e-tags."""
        attempt = self.committer.begin(checkpoint)
        etags = {
            path: self.committer.put_file(checkpoint, attempt, path, data)
            for path, data in contents.items()
            if data is not None
        }
        return attempt, etags

    def seal(
        self, checkpoint: str, attempt: str, contents: Contents, rank: int,
        etags: dict[str, str], ranks_count: int | None = None, **known: Any,
    ) -> None:  # fmt: skip
        """Seal an attempt with the digests of what was meant to be written."""
        files = [
            FileEntry(path, len(data), xxhash.xxh3_128_hexdigest(data))
            for path, data in contents.items()
            if data is not None
        ]
        whole = with_directories(contents)
        directories = sorted(path for path, data in whole.items() if data is None)
        now_s = float(next(self.clock))
        seal = Seal(attempt, rank, now_s, tuple(files), tuple(directories), ranks_count, **known)
        self.committer.seal(checkpoint, seal, etags if self.etags else None)

    def place(self, checkpoint: str, whole: Contents, attempts: Sequence[str] | None) -> None:
        """Place what these attempts sealed, which has to give `whole`."""
        contents = with_directories(whole)
        self.ledger.place_begins(checkpoint, contents)
        self.placed[checkpoint] = self.committer.place(checkpoint, attempts=attempts).manifest
        self.ledger.place_returned(checkpoint, contents)

    def acknowledge(self, checkpoint: str, contents: Contents) -> None:
        """A trial of one process reports a checkpoint, and hears from the driver that it may go on.

        From here it must not be lost, though nothing is in the bucket yet that tells of the order.
        """
        attempt = self.stage(checkpoint, contents, ranks_count=1)
        self.place(checkpoint, contents, [attempt])
        self.ledger.acknowledged.add(checkpoint)

    def state(self, *names: str) -> None:
        """Write a state object that names checkpoints."""
        number = self.ledger.state_begins(names)
        body = json.dumps({"number": number, "checkpoints": names}).encode()
        self.do(lambda: self.bucket.put(STATE_KEY, body))
        self.ledger.state_returned(number)

    def lose_by_hand(self, checkpoint: str) -> None:
        """Someone removes a checkpoint's objects, past the committer."""
        self.ledger.retire_begins(checkpoint)
        keys = [o.key for o in self.bucket.list(checkpoint)]
        if isinstance(self.bucket, MemoryBucket):
            MemoryBucket.delete(self.bucket, keys)  # no step of ours: it is not cut off
        else:
            self.bucket.delete(keys)
        self.ledger.retire_returned(checkpoint)
