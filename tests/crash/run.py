"""A run that drives a committer as the product does, and keeps the ledger of its promises."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import xxhash

from tests.crash.invariants import STATE_KEY
from tests.crash.ledger import Contents, Ledger, with_directories
from tests.crash.steps import Steps
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import Store
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Manifest, Seal
from tune_sync.testing.fault_store import FaultStore

MakeCommitter = Callable[..., Committer]

LONG_S = 1234567.890625


class _RefusesMoves(FaultStore):
    """Nothing can be moved to one place."""

    def __init__(self, base: Store, place: str) -> None:
        super().__init__(base)
        self._place = place

    def rename(self, source: str, target: str) -> None:
        if target == self._place:
            raise OSError(errno.EIO, "refused", target)
        self.base.rename(source, target)


class Run(Steps):
    """Steps of scenarios.

    Args:
        store: Where; may fail or crash.
        ledger: Filled as promises are made.
        make_committer: The committer class, or a wrong one.
        ids_fall: Later ids sort before earlier ones, so that no order of names is relied on.
    """

    def __init__(
        self, store: Store, ledger: Ledger, make_committer: MakeCommitter = Committer,
        *, ids_fall: bool = False,
    ) -> None:  # fmt: skip
        numbers = itertools.count(900, -1) if ids_fall else itertools.count(100)
        self.store = store
        self.ledger = ledger
        self.placed: dict[str, Manifest] = {}
        self.clock: Iterator[float] = itertools.count(1)
        self.committer = make_committer(
            store,
            "owner",
            clock=lambda: float(next(self.clock)),
            new_id=lambda: f"id{next(numbers)}",
        )

    def publish(self, checkpoint: str, contents: Contents) -> None:
        """All the way: stage, place, record."""
        self.stage(checkpoint, contents)
        self.place(checkpoint, contents)
        self.record(checkpoint)

    def stage(
        self, checkpoint: str, contents: Contents, *, rank: int = 0,
        first_seal: Sequence[str] = (), **known: Any,
    ) -> None:  # fmt: skip
        """Write an attempt and seal it; before that, seal only `first_seal` of it, if given."""

        def attempt() -> None:
            name = self.write(checkpoint, contents)
            if first_seal:
                self.seal(checkpoint, name, {p: contents[p] for p in first_seal}, rank)
            self.seal(checkpoint, name, contents, rank, **known)

        self.do(attempt)

    def write(self, checkpoint: str, contents: Contents) -> str:
        """Write an attempt without sealing it; returns its id."""
        attempt = self.committer.begin(checkpoint)
        data = staged_key(checkpoint, attempt)
        for path, content in contents.items():
            if content is not None:
                self.store.make_dir(f"{data}/{path}".rpartition("/")[0])
                self.store.write_at(f"{data}/{path}", 0, content)
        return attempt

    def seal(
        self, checkpoint: str, attempt: str, contents: Contents, rank: int = 0, **known: Any
    ) -> None:
        """Seal an attempt with the digests of what was meant to be written."""
        files = [
            FileEntry(path, len(data), xxhash.xxh3_128_hexdigest(data))
            for path, data in contents.items()
            if data is not None
        ]
        whole = with_directories(contents)
        directories = sorted(path for path, data in whole.items() if data is None)
        now_s = float(next(self.clock))
        seal = Seal(attempt, rank, now_s, tuple(files), tuple(directories), **known)
        self.committer.seal(checkpoint, seal)

    def place(self, checkpoint: str, whole: Contents) -> None:
        """Place what is sealed, which has to give `whole`."""
        contents = with_directories(whole)
        self.ledger.place_begins(checkpoint, contents)
        self.do(lambda: self._place(checkpoint))
        self.ledger.place_returned(checkpoint, contents)

    def place_in_vain(self, checkpoint: str, whole: Contents) -> None:
        """A `place` that fails at its rename, with an intent that is longer than later ones."""
        self.clock = itertools.chain([LONG_S], self.clock)
        self.ledger.place_begins(checkpoint, with_directories(whole))
        committer, self.committer.store = self.committer, _RefusesMoves(self.store, checkpoint)
        try:
            with suppress(OSError):
                committer.place(checkpoint)
        finally:
            committer.store = self.store

    def _place(self, checkpoint: str) -> None:
        self.placed[checkpoint] = self.committer.place(checkpoint).manifest

    def state(self, *names: str) -> None:
        """Write a state file that names checkpoints."""
        number = self.ledger.state_begins(names)
        body = json.dumps({"number": number, "checkpoints": names}).encode()
        self.do(lambda: self._commit(STATE_KEY, body, durable=True))
        self.ledger.state_returned(number)

    def log(self, key: str, data: bytes) -> None:
        """Write a file that need not survive a power cut."""
        self.do(lambda: self._commit(key, data, durable=False))

    def lose_by_hand(self, checkpoint: str) -> None:
        """Someone moves a checkpoint away, past the committer."""
        self.ledger.retire_begins(checkpoint)
        self.store.rename(checkpoint, f"moved by hand {next(self.clock)}")
        self.store.sync("")
        self.ledger.retire_returned(checkpoint)

    def _commit(self, key: str, data: bytes, *, durable: bool) -> None:
        incoming = self.committer.begin_file()
        self.store.write_at(incoming, 0, data)
        self.committer.commit_file(incoming, key, durable=durable)
