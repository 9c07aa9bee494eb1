"""The home of an experiment: the node and directory that keep its results.

`Home` is that place as any process sees it. `LocalHome` is it on the home node itself; a
process elsewhere reaches the same verbs through the home agent (`agents.remote_home`).
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tune_sync import guard, layout
from tune_sync.errors import ImmutableError, TuneSyncError
from tune_sync.homes import disk
from tune_sync.homes.commit import Committer
from tune_sync.homes.lease import check_owner
from tune_sync.homes.recorded import LiveSnapshot, recorded
from tune_sync.homes.store import Info, LocalStore, sync_with_all_above
from tune_sync.layout import manifest_key
from tune_sync.manifest import Conflicts, FileEntry, Seal

# Files that came in, or were given up, that are known as such: a write that was on its way for
# longer, while so many others went by, makes one anew, which stays until the next sweep.
OVER_KEPT_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Piece:
    """One small file inside a batch.

    Attributes:
        key: Where it goes: a staged key (`layout.staged_key`), or one of `Home.begin_file`.
        offset_bytes: Where it starts in the batch.
        length_bytes: How long it is.
    """

    key: str
    offset_bytes: int
    length_bytes: int


class NoLinksError(Exception):
    """A home has one name for one file's bytes: they are to be sent again."""


class Home(Protocol):
    """The home of one experiment. Keys are relative to the experiment directory.

    `write` and `write_batch` may return before the bytes arrived; `flush` returns when they did,
    and raises what went wrong. Nothing is durable before `seal` or `commit_file` returned.

    Attributes:
        in_place: Staged bytes are written where they will stay: what is there need not be whole.
        rewrite_s: Seconds that have to pass before one file is replaced again.
        keeps_chunks: What `write` is given is still being sent when it returns: a chunk in memory
            that will be filled again is copied before, any other is not.
    """

    in_place: bool
    rewrite_s: float
    keeps_chunks: bool

    def info(self, key: str) -> Info | None:
        """What `key` is; None only if it is surely not there."""

    def list(self, key: str, recursive: bool) -> list[Info]:
        """Entries below a directory."""

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes | memoryview:
        """Bytes of a file, fewer at its end."""

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """All bytes of several small files."""

    def make_dir(self, key: str) -> None:
        """Create a directory outside checkpoints."""

    def remove(self, key: str) -> None:
        """Remove a file, a directory, or retire a checkpoint."""

    def begin(self, checkpoint: str) -> str:
        """Open an attempt at a checkpoint; returns its id."""

    def begin_file(self) -> str:
        """A key for one file that `commit_file` will put in its place."""

    def expect(self, key: str, size_bytes: int) -> None:
        """Tell how large a staged file will be, where that is known before it is sent."""

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """Send a chunk of a staged file."""

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """Send many small staged files at once."""

    def link(self, source: str, target: str) -> None:
        """Make a staged file known under a second name. Raises NoLinksError where it cannot."""

    def make_directory(self, size_bytes: int = 0) -> Path | None:
        """A directory to be filled and handed over; None if nothing is gained by it here.

        Args:
            size_bytes: About what is to be in it; 0: it is not known.
        """

    def take(self, key: str, source: Path, *, is_given: bool) -> FileEntry | None:
        """Stage a file of this node without bringing its bytes here; None if that cannot be done.

        Its digest is not known then. If it `is_given`, and lies in a directory of `make_directory`,
        it may be moved.
        """

    def flush(self, key: str) -> None:
        """Wait until all that was written to a staged file, and its whole attempt, is there."""

    def finish(self, key: str) -> None:
        """End a staged file of several chunks, and wait until it is there."""

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """Close an attempt; durable on return, but for what a node stages: its agent does that."""

    def reported_as(self, attempt: str) -> str:
        """What the driver is told of a sealed attempt: its id, and its node if it is not home."""

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """Put one file in its place, whole."""

    def put_file(self, key: str, data: bytes | bytearray | memoryview, durable: bool) -> None:
        """Put one small file in its place, whole; nothing of it stays where that fails."""

    def drop_file(self, incoming: str) -> None:
        """Give up one file that was not put in its place; its late writes fail.

        A home that is elsewhere is waited for for a moment only.
        """

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """Drop an attempt; its late writes fail."""

    def publish(self, checkpoint: str, strict: bool, attempts: Collection[str]) -> Conflicts:
        """Publish what all ranks sealed in these attempts; returns `Union.conflicts`."""


class ReadsAll:
    """A home that stages nothing unread."""

    def make_directory(self, size_bytes: int = 0) -> Path | None:
        """See `Home.make_directory`."""
        return None

    def take(self, key: str, source: Path, *, is_given: bool) -> FileEntry | None:
        """See `Home.take`."""
        return None


class LocalHome(ReadsAll):
    """The experiment directory, on its own node.

    Args:
        root: The experiment directory.
        owner: The run that may write, checked against the lease before anything becomes
            visible; "" for readers and for runs without a lease.
        checkpoint_depth: See `layout.classify`.
        leased_root: The directory with the lease, if it is another one: a trainer inside of a trial
            writes below the trial's experiment.
    """

    in_place = False
    rewrite_s = 0.0
    keeps_chunks = False
    publish_at_once = 1

    def __init__(
        self, root: Path, owner: str = "", checkpoint_depth: int = 1,
        leased_root: Path | None = None,
    ) -> None:  # fmt: skip
        self.root, self._leased_root = root, leased_root or root
        self.store = LocalStore(root)
        self._owner = owner
        self._depth = checkpoint_depth
        self._has_durable_root = leased_root in (None, root)
        self.committer = Committer(self.store, owner, self._fence)
        self._over: dict[str, None] = {}  # files that came in, or were given up

    def _fence(self) -> None:
        if self._owner:
            check_owner(self._leased_root, self._owner)

    def info(self, key: str) -> Info | None:
        """See `Home.info`."""
        return self.store.info(key)

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`. Ours (`.tune_sync`, at the top) is not listed."""
        found = []
        for entry in self.store.list(key):
            if entry.key == layout.INTERNAL_DIR:
                continue
            found.append(entry)
            if recursive and entry.is_dir:
                found.extend(self.list(entry.key, True))
        return found

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes:
        """See `Home.read`."""
        return self.store.read(key, offset_bytes, length_bytes)

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """See `Home.read_many`."""
        return [self.store.read(key) for key in keys]

    def make_dir(self, key: str) -> None:
        """See `Home.make_dir`."""
        self._fence()
        self.store.make_dir(self._plain(key) if key else key)

    def remove(self, key: str) -> None:
        """See `Home.remove`."""
        place = layout.classify(key, checkpoint_depth=self._depth)
        if place.kind is layout.Kind.CHECKPOINT and not place.inner:
            self.committer.retire(key)
            return
        self._plain(key)
        self._fence()
        found = self.store.info(key)
        if found is not None and found.is_dir:
            guard.removable(key, [*self._below(key)])
            self.store.remove_tree(key)
        else:
            self.store.remove(key)

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`."""
        return self._begin(checkpoint, "")

    def begin_as(self, checkpoint: str, attempt: str) -> None:
        """`begin`, with the id that the attempt has elsewhere. There must be none of it here."""
        self._begin(checkpoint, guard.attempt(attempt))

    def _begin(self, checkpoint: str, attempt: str) -> str:
        self._fence()
        return self.committer.begin(guard.checkpoint(checkpoint, self._depth), attempt)

    def begin_file(self) -> str:
        """See `Home.begin_file`."""
        self._fence()
        return self.committer.begin_file()

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`: a file grows as it is written."""

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`."""
        self._make_parent(guard.staged(key))
        self.store.write_at(key, offset_bytes, data)
        if key in self._over:  # this came too late, and has made it anew
            self.store.remove(key)
            raise FileNotFoundError(f"{key} was given up or put in its place; too late to write it")

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`."""
        view = memoryview(data)
        made: set[str] = set()
        for piece in pieces:
            parent = guard.staged(piece.key).rpartition("/")[0]
            if parent not in made:
                self._make_parent(piece.key)
                made.add(parent)
            end = piece.offset_bytes + piece.length_bytes
            self.store.write_at(piece.key, 0, view[piece.offset_bytes : end])

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        self._make_parent(guard.staged(target))
        self.store.link(guard.staged(source), target)

    def flush(self, key: str) -> None:
        """See `Home.flush`: here every write has already happened."""

    def finish(self, key: str) -> None:
        """See `Home.finish`: here every write has already happened."""

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        self._fence()
        guard.attempt(seal.attempt)
        self.committer.seal(guard.checkpoint(checkpoint, self._depth), seal)
        if not self._has_durable_root:  # of an experiment `Site.prepare` sees to that
            sync_with_all_above(self.root)
            self._has_durable_root = True

    def reported_as(self, attempt: str) -> str:
        """See `Home.reported_as`."""
        return attempt

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """See `Home.commit_file`."""
        if incoming in self._over:  # it came again: what is there by now was written late
            return
        self.committer.commit_file(guard.incoming(incoming), self._plain(key), durable=durable)
        self._note_over(incoming)

    def put_file(self, key: str, data: bytes | bytearray | memoryview, durable: bool) -> None:
        """See `Home.put_file`."""
        put_in_steps(self, key, data, durable)

    def put_file_as(self, incoming: str, key: str, data: memoryview, durable: bool) -> None:
        """`put_file`, by way of a key that the caller has made, who may ask for it again."""
        if guard.incoming(incoming) in self._over:
            return
        self._fence()
        self.store.make_dir(layout.INCOMING_DIR)
        try:
            self.write(incoming, 0, data)
            self.commit_file(incoming, key, durable)
        except FileNotFoundError:  # unless it came twice at once, and the other was faster
            if incoming not in self._over:
                raise

    def drop_file(self, incoming: str) -> None:
        """See `Home.drop_file`."""
        self._note_over(guard.incoming(incoming))
        self.store.remove(incoming)  # who makes it anew after that, removes it

    def _note_over(self, incoming: str) -> None:
        self._over[incoming] = None
        for oldest in list(self._over)[:-OVER_KEPT_COUNT]:  # without a lock, as homes are pickled
            self._over.pop(oldest, None)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`."""
        guard.checkpoint(checkpoint, self._depth)
        self.committer.discard_attempt(checkpoint, guard.attempt(attempt))

    def publish(self, checkpoint: str, strict: bool, attempts: Collection[str]) -> Conflicts:
        """See `Home.publish`."""
        guard.checkpoint(checkpoint, self._depth)
        is_recorded = self.store.info(layout.manifest_key(checkpoint)) is not None
        if is_recorded and not self.committer.is_placed(checkpoint, attempts):
            if not self.store.list(f"{layout.STAGING_DIR}/{checkpoint}"):
                return ()  # the call came again, after its answer was lost
            raise ImmutableError(
                f"{checkpoint} is published and never changes; report under another name"
            )
        placed = self.committer.place(checkpoint, strict=strict, attempts=attempts)
        self.committer.record(placed.manifest)
        return placed.conflicts

    def published_keys(self) -> Iterator[str]:
        """Keys of all checkpoints that have a manifest."""
        return recorded(self.store)

    def snapshot(self) -> LiveSnapshot:
        """What a restore looks at."""
        return LiveSnapshot(self.store, self.committer.manifest)

    def _plain(self, key: str) -> str:
        """See `guard.plain`; and what is published is so whatever depth a caller claims."""
        parts = guard.plain(key, self._depth).split("/")
        for end in range(1, len(parts) + 1):
            if self.store.info(manifest_key("/".join(parts[:end]))) is not None:
                raise ImmutableError(f"{key} is part of a published checkpoint and never changes")
        return key

    def _below(self, key: str) -> Iterator[str]:
        """Files below a directory, and the manifests of checkpoints that are. Follows no link."""
        yield from map(manifest_key, recorded(self.store, f"{layout.MANIFESTS_DIR}/{key}"))
        for base, names in disk.walk(self.root / key):
            yield from ((base / name).relative_to(self.root).as_posix() for name in names)

    def _make_parent(self, key: str) -> None:
        """Make the parent of a staged file, but never the attempt itself: it may be discarded."""
        parent = key.rpartition("/")[0]
        if self.store.info(parent) is None:
            top = guard.attempt_root(key)
            if self.store.info(top) is None:
                raise FileNotFoundError(f"attempt {top} was discarded; this write came too late")
            self.store.make_dir(parent)


def put_in_steps(home: Home, key: str, data: bytes | bytearray | memoryview, durable: bool) -> None:
    """See `Home.put_file`."""
    incoming = home.begin_file()
    try:
        home.write(incoming, 0, memoryview(data))
        home.flush(incoming)
        home.commit_file(incoming, key, durable)
    except BaseException:
        with suppress(TuneSyncError, OSError):  # best effort: a start sweeps the rest
            home.drop_file(incoming)
        raise
