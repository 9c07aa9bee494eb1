"""What is published or staged in an experiment directory, as others read it; see `records`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.store import Info
from tune_sync.manifest import FileEntry, Manifest, Placed

# How much of a file is read at a time where only its bytes tell whose it is.
DIGEST_STEP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `Committer.recover` did.

    Attributes:
        completed: Checkpoints whose manifest was recorded after all.
        dropped: Staged checkpoints that were not whole, or that nobody can tell to be.
        forgotten: Published checkpoints that someone else removed.
        kept: Staged checkpoints that stay: parts of other ranks may come, or a seal cannot be read.
    """

    completed: tuple[str, ...]
    dropped: tuple[str, ...]
    forgotten: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def below(self, directory: str) -> Recovery:
        """The same, of a directory of an experiment, as that names them."""
        kinds = (self.completed, self.dropped, self.forgotten, self.kept)
        return Recovery(*(tuple(f"{directory}/{key}" for key in kind) for kind in kinds))

    def __add__(self, other: Recovery) -> Recovery:
        return Recovery(
            self.completed + other.completed, self.dropped + other.dropped,
            self.forgotten + other.forgotten, self.kept + other.kept,
        )  # fmt: skip


class Readable(Protocol):
    """What is needed of `store.Store`."""

    def info(self, key: str) -> Info | None:
        """What `key` is."""

    def list(self, key: str) -> builtins.list[Info]:
        """The direct entries of a directory."""


class Snapshot(Readable, Protocol):
    """What a restore looks at. What changes later need not show in it."""

    def manifest(self, checkpoint: str) -> Manifest | None:
        """See `Committer.manifest`."""


class Reads(Readable, Protocol):
    """What a driver reads of its home with. See `store.Store`."""

    def read(self, key: str) -> bytes:
        """All bytes of a file."""


class Commits(Protocol):
    """What orders writes at the home of a driver. See `commit.Committer`.

    Attributes:
        keeps_all: See `passed_by`.
    """

    keeps_all: bool

    def place(
        self, checkpoint: str, *, strict: bool = False, attempts: Collection[str] | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> Placed:  # fmt: skip
        """Take the sealed parts of a checkpoint for it."""

    def record(self, manifest: Manifest) -> None:
        """Publish a placed checkpoint."""

    def retire(self, checkpoint: str) -> None:
        """Delete a checkpoint."""

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """Drop one attempt."""

    def attempts(self, trial: str) -> builtins.list[tuple[str, str]]:
        """What a trial has in staging and did not place: `(checkpoint, attempt)`."""

    def manifest(self, checkpoint: str) -> Manifest | None:
        """The manifest of a published checkpoint."""

    def recover(
        self, *, strict: bool = False, waits: bool = False, sent_since_s: float | None = None
    ) -> Recovery:
        """Complete what was placed or may have been, drop the rest."""

    def sweep(self) -> Recovery:
        """As `recover`, of what this run has placed alone."""


class LiveSnapshot:
    """A `Snapshot` that looks each time: where that is fast.

    Args:
        store: Rooted at the experiment.
        manifest: See `Committer.manifest`.
    """

    def __init__(self, store: Readable, manifest: Callable[[str], Manifest | None]) -> None:
        self.info, self.list, self.manifest = store.info, store.list, manifest


def recorded(store: Readable, below: str = layout.MANIFESTS_DIR) -> Iterator[str]:
    """Keys of checkpoints that have a manifest, in order. Reads none of them."""
    for entry in store.list(below):
        if entry.is_dir:
            yield from recorded(store, entry.key)
        elif entry.key.endswith(".json"):  # what others put there is not ours
            yield entry.key.removeprefix(layout.MANIFESTS_DIR + "/").removesuffix(".json")


def newest_of(checkpoints: Iterable[str]) -> dict[str, str]:
    """Trial directory -> the latest of its checkpoints."""
    return {layout.parent(key): key for key in sorted(checkpoints, key=layout.by_age)}


def passed_by(published: Iterable[str], *, keeps_all: bool) -> Callable[[str], str]:
    """What a staged checkpoint has to be later than, to be published after all; "" if nothing.

    The latest of its trial: what is older may have been deleted meanwhile, and does not come back.
    With `keeps_all` nothing is deleted, and only what is published already is not wanted.
    """
    there = set(published)
    if keeps_all:
        return lambda checkpoint: checkpoint if checkpoint in there else ""
    newest = newest_of(there)
    return lambda checkpoint: newest.get(layout.parent(checkpoint), "")


def staged(store: Readable) -> Iterator[str]:
    """Keys of checkpoints with anything in staging, at whatever depth Ray puts them."""
    todo = [layout.STAGING_DIR]
    while todo:
        for entry in store.list(todo.pop()):
            key = entry.key.removeprefix(layout.STAGING_DIR + "/")
            if layout.is_checkpoint_name(key.rsplit("/", 1)[-1]):
                yield key
            elif entry.is_dir:
                todo.append(entry.key)


def has_sealed(store: Readable) -> bool:
    """Whether staging holds what a recovery may publish: it was sealed, or placed."""
    keys = (f"{layout.STAGING_DIR}/{checkpoint}" for checkpoint in staged(store))
    attempts = (attempt.key for key in keys for attempt in store.list(key))
    marks = (f"{attempt}/{mark}" for attempt in attempts for mark in (layout.SEAL, layout.INTENT))
    return any(store.info(mark) is not None for mark in marks)


def recorded_numbers(store: Readable) -> dict[str, set[int]]:
    """Trial directory -> numbers of its published checkpoints that are there."""
    found: dict[str, set[int]] = {}
    for key in recorded(store):
        number = layout.checkpoint_number(key)
        if number is not None and store.info(key) is not None:
            found.setdefault(layout.parent(key), set()).add(number)
    return found


def is_whole(store: Readable, manifest: Manifest) -> bool:
    """Whether every file of a published checkpoint is there, as long as it should be."""
    return not first_wrong(store, manifest.checkpoint, manifest.files)


def check_listed(checkpoint: str, below: str, files: Iterable[str], there: Iterable[str]) -> None:
    """Raise DamagedError unless all that a checkpoint has was listed.

    Args:
        checkpoint: Its key.
        below: Key of the directory that was listed: the checkpoint, or one inside.
        files: Keys of what it has.
        there: Keys that were listed.
    """
    missing = {file for file in files if file.startswith(f"{below}/")}.difference(there)
    if missing:
        name = min(missing).removeprefix(f"{checkpoint}/")
        more = f" and {len(missing) - 1} more of its files are" if len(missing) > 1 else " is"
        raise DamagedError(f"{checkpoint} is damaged: {name}{more} missing; {ways_out(checkpoint)}")


def ways_out(checkpoint: str) -> str:
    """What to do about one that is damaged, for messages."""
    return (
        f"put a whole copy of it back, or delete {checkpoint} and restore: its trial then goes on "
        "from an earlier checkpoint"
    )


def digest_in_steps(read: Callable[[int, int], bytes], size_bytes: int) -> str:
    """xxh3_128 of a file, in hexadecimal. `read`: bytes from an offset on, at most so many."""
    digest = xxhash.xxh3_128()
    for start in range(0, size_bytes, DIGEST_STEP_BYTES):
        digest.update(read(start, DIGEST_STEP_BYTES))
    return digest.hexdigest()


def all_below(store: Readable, directory: str) -> Iterator[str]:
    """All files and directories below a directory, relative to it."""
    todo = [directory]
    while todo:
        for entry in store.list(todo.pop()):
            yield entry.key.removeprefix(directory + "/")
            if entry.is_dir:
                todo.append(entry.key)


def first_wrong(store: Readable, directory: str, files: Iterable[FileEntry]) -> str:
    """Says of the first file that is not there as long as it should be what is there; else ""."""
    for file in files:
        key = f"{directory}/{file.path}"
        found = store.info(key)
        if found is None or found.is_dir or found.size_bytes != file.size_bytes:
            got = "missing" if found is None else f"{found.size_bytes} bytes"
            return f"{key} is {got}, not {file.size_bytes} bytes"
    return ""
