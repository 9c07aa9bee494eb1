"""`BucketHome`: an experiment whose home is a bucket. Every process writes straight to it.

Bytes of an attempt go to their final keys at once, as a bucket cannot rename, but for small files
whose keys are taken; what counts is the manifest (see `homes.bucket.commit`). Small files are put
side by side, large ones as streams.
"""

from __future__ import annotations

import builtins
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, TypeVar

from tune_sync import guard, layout
from tune_sync.buckets.ahead import ReadsAhead
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.transfers import Transfers
from tune_sync.errors import DamagedError, NotWholeError
from tune_sync.homes.bucket import lease as bucket_lease
from tune_sync.homes.bucket.commit import BucketCommitter
from tune_sync.homes.bucket.snapshot import BucketSnapshot, take_snapshot
from tune_sync.homes.bucket.staging import final_key
from tune_sync.homes.bucket.streams import TELL_SIZE, ObjectStream, too_large
from tune_sync.homes.bucket.view import BucketView, as_directory, as_tree
from tune_sync.homes.home import NoLinksError, Piece, ReadsAll, put_in_steps
from tune_sync.homes.recorded import check_listed
from tune_sync.homes.store import Info
from tune_sync.manifest import Conflicts, Manifest, Seal

T = TypeVar("T")

# A single file (state, a log, an artifact) is held in memory up to the second, then on a disk.
READ_BYTES, HELD_BYTES = 8 << 20, 16 << 20
# A look at the lease for each of many logs would double their requests.
FENCE_S = 5.0
# A checkpoint that is being published is read when that is over: how long that may take.
PUBLISHING_S, LOOK_S = 60.0, 0.2
# A sealed attempt may get more files, and is sealed again: the e-tags of so many are kept.
SEALED_KEPT_COUNT = 8
# A discarded attempt may have writers that do not know yet.
OVER_KEPT_COUNT = 1024


class BucketHome(ReadsAll):
    """See `home.Home`. Methods may be called from any thread.

    Args:
        bucket: Rooted at the experiment directory.
        owner: See `LocalHome`.
        checkpoint_depth: See `layout.classify`.
        clock: Monotonic seconds.
        leased: Rooted at the directory with the lease, if that is another one; see `LocalHome`.
    """

    in_place = True
    rewrite_s = 1.0  # Google refuses to write one object more often
    keeps_chunks = True
    publish_at_once = 8  # each takes ten round trips

    def __init__(
        self, bucket: Bucket, owner: str = "", checkpoint_depth: int = 1,
        clock: Callable[[], float] = time.monotonic, leased: Bucket | None = None,
    ) -> None:  # fmt: skip
        self.bucket, self._leased, self.store = bucket, leased or bucket, BucketView(bucket)
        self._owner, self._depth = owner, checkpoint_depth
        self._clock, self._looked_s = clock, float("-inf")
        self.committer = BucketCommitter(bucket, owner, self._fence)
        self._streams, self._sizes = dict[str, ObjectStream](), dict[str, int]()
        self._etags, self._incoming = dict[str, dict[str, str]](), dict[str, IO[bytes]]()
        self._sealed = dict[str, None]()  # attempts, the last one at the end
        self._over, self._parts = dict[str, None](), threading.Lock()
        self._transfers, self._reads = Transfers(), ReadsAhead(bucket)
        self._marker: Info | None = None

    def info(self, key: str) -> Info | None:
        """See `Home.info`. Asks the manifest for what may be an empty directory."""
        if key == layout.MARKER:  # `begin` asks for the lease, which says more
            self._marker = self._marker or self.store.info(key)
            return self._marker
        place = layout.classify(key, checkpoint_depth=self._depth) if key else None
        is_checkpoint = place is not None and place.kind is layout.Kind.CHECKPOINT
        if is_checkpoint and place is not None and not place.inner:
            found = self.store.directory(key)
        else:
            found = self.store.info(key)
        return found if found is not None else self._empty_dir(key)

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`. Empty directories of a checkpoint are in its manifest alone."""
        if not recursive:
            return [entry for entry in self.store.list(key) if entry.key != layout.INTERNAL_DIR]
        place = layout.classify(key, checkpoint_depth=self._depth)
        if place.kind is layout.Kind.CHECKPOINT:
            return self._list_checkpoint(key, place.checkpoint)
        found = self.store.tree(key)
        return [e for e in found if layout.below(layout.INTERNAL_DIR, e.key) is None]

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes | memoryview:
        """See `Home.read`. Ranges come side by side, and before they are asked for."""
        return self._reads.read(key, offset_bytes, length_bytes)

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """See `Home.read_many`."""
        return list(self._transfers.pool.map(self.bucket.get, keys))

    def make_dir(self, key: str) -> None:
        """See `Home.make_dir`: a bucket has no directories, so there is nothing to make."""

    def remove(self, key: str) -> None:
        """See `Home.remove`."""
        place = layout.classify(key, checkpoint_depth=self._depth)
        if place.kind is layout.Kind.CHECKPOINT and not place.inner:
            self.committer.retire(key)
            return
        guard.plain(key, self._depth)
        self._fence()
        below = [found.key for found in self.bucket.list(key)]
        if below:
            manifests = self.bucket.list(f"{layout.MANIFESTS_DIR}/{key}")
            guard.removable(key, [*below, *(found.key for found in manifests)])
        self.bucket.delete([*below, key])

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`."""
        fence = self._transfers.pool.submit(self._fence)
        return self.committer.begin(guard.checkpoint(checkpoint, self._depth), fence.result)

    def begin_file(self) -> str:
        """See `Home.begin_file`. Nothing is in the bucket before `commit_file`."""
        key = f"{layout.INCOMING_DIR}/{uuid.uuid4().hex}"
        with self._parts:
            # Closed by `commit_file`, or with this process.
            self._incoming[key] = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115
        return key

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`. What is too large is told before any of it is sent."""
        can = self.bucket.capabilities
        if size_bytes > can.stream_bytes:
            raise too_large(can.stream_bytes, can.larger)
        with self._parts:
            self._sizes[key] = size_bytes

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`. Chunks of one file come in their order."""
        guard.staged(key)
        file = self._incoming.get(key)
        if file is not None:
            file.seek(offset_bytes)
            file.write(data)
            return
        stream = self._stream(key)
        if stream.taken_bytes != offset_bytes:
            raise DamagedError(
                f"{key}: bytes from {offset_bytes} on came after {stream.taken_bytes}; report the "
                "checkpoint again"
            )
        stream.write(data)

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`. `flush` waits until all arrived."""
        view = memoryview(data)
        self._ask_attempt(pieces[0].key)
        for piece in pieces:
            end = piece.offset_bytes + piece.length_bytes
            self._start_put(piece.key, bytes(view[piece.offset_bytes : end]))

    def link(self, source: str, target: str) -> None:
        """See `Home.link`. What is at the key of `source` by now may be another rank's."""
        raise NoLinksError(f"{target} cannot be a second name of {source} in a bucket")

    def flush(self, key: str) -> None:
        """See `Home.flush`."""
        self._transfers.wait(guard.staged_part(key))

    def finish(self, key: str) -> None:
        """See `Home.finish`. `flush` waits for a file of one request."""
        stream = self._streams.get(key)
        if stream is None:
            return
        try:
            if (whole := stream.take_whole()) is None:
                self._arrived(key, stream.finish())
            else:
                self._start_put(key, whole)
        except Exception:
            stream.abort()  # asked again, it must not look as if it were finished
            raise
        with self._parts:
            self._streams.pop(key, None)
            self._sizes.pop(key, None)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        self.flush(layout.staged_key(checkpoint, guard.attempt(seal.attempt)))
        fence = self._transfers.pool.submit(self._fence)
        part = layout.staged_key(checkpoint, seal.attempt)
        known = self._etags.get(part, {})
        guard.checkpoint(checkpoint, self._depth)
        self.committer.seal(checkpoint, seal, etags=dict(known), may_put=fence.result)
        with self._parts:
            for old in _note_last(self._sealed, part, SEALED_KEPT_COUNT):
                self._etags.pop(old, None)

    def reported_as(self, attempt: str) -> str:
        """See `Home.reported_as`."""
        return attempt

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """See `Home.commit_file`. An object is always durable, and replaced whole."""
        guard.plain(key, self._depth)
        with self._parts:
            file = self._incoming.pop(guard.incoming(incoming))
        with file:  # it goes, whatever comes of it
            self._check_owner_at_times()
            size_bytes = file.seek(0, 2)
            file.seek(0)
            if size_bytes <= HELD_BYTES:
                self.bucket.put(key, file.read())
            else:
                self.bucket.put_stream(key, iter(lambda: file.read(READ_BYTES), b""), size_bytes)

    def put_file(self, key: str, data: bytes | bytearray | memoryview, durable: bool) -> None:
        """See `Home.put_file`."""
        put_in_steps(self, key, data, durable)

    def drop_file(self, incoming: str) -> None:
        """See `Home.drop_file`."""
        with self._parts:
            file = self._incoming.pop(guard.incoming(incoming), None)
        if file is not None:
            file.close()

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`."""
        guard.checkpoint(checkpoint, self._depth)
        part = layout.staged_key(checkpoint, guard.attempt(attempt))
        with self._parts:
            _note_last(self._over, part, OVER_KEPT_COUNT)
            self._sealed.pop(part, None)
            self._etags.pop(part, None)
            streams = list(_take(self._streams, part).values())
            _take(self._sizes, part)
        for stream in streams:
            stream.abort()
        self._transfers.drop(part)
        self.committer.discard_attempt(checkpoint, attempt)

    def publish(self, checkpoint: str, strict: bool, attempts: Collection[str]) -> Conflicts:
        """See `Home.publish`."""
        guard.checkpoint(checkpoint, self._depth)
        placed = self.committer.place(checkpoint, strict=strict, attempts=attempts)
        self.committer.record(placed.manifest)
        return placed.conflicts

    def published_keys(self) -> builtins.list[str]:
        """Keys of all checkpoints that have a manifest, by one listing."""
        return self.committer.recorded()

    def snapshot(self) -> BucketSnapshot:
        """What a restore looks at: a few listings, and the manifests."""
        return take_snapshot(self.committer, self._transfers.pool)

    def _fence(self) -> None:
        if not self._owner:
            return
        where = str(getattr(self._leased, "where", "this experiment"))
        bucket_lease.check_owner(self._leased, self._owner, where)
        self._looked_s = self._clock()

    def _check_owner_at_times(self) -> None:
        if self._clock() - self._looked_s > FENCE_S:
            self._fence()

    def _list_checkpoint(self, key: str, checkpoint: str) -> builtins.list[Info]:
        """What the manifest names: not what a late writer may have left beside that."""
        looked = self._transfers.pool.submit(self.committer.manifest, checkpoint)
        objects = self.bucket.list(key)
        manifest = looked.result()
        there = {found.key for found in objects}
        if manifest is None or any(f"{checkpoint}/{f.path}" not in there for f in manifest.files):
            # Published after one was asked and before the other: what it names is there by now.
            manifest, objects = self._manifest(checkpoint), self.bucket.list(key)
        if manifest is None:
            return as_tree(key, objects)
        named = {f"{checkpoint}/{file.path}": file for file in manifest.files}
        found = as_tree(key, objects, (f"{checkpoint}/{d}" for d in manifest.directories))
        listed = [replace(e, stored=named.get(e.key)) for e in found]
        check_listed(checkpoint, key, named, (e.key for e in listed))
        self._reads.sizes = {e.key: e.size_bytes for e in listed if e.stored}
        return [entry for entry in listed if entry.is_dir or entry.stored]

    def _empty_dir(self, key: str) -> Info | None:
        if not key or layout.below(layout.INTERNAL_DIR, key) is not None:
            return None
        place = layout.classify(key, checkpoint_depth=self._depth)
        manifest = self.committer.manifest(place.checkpoint) if place.checkpoint else None
        names = ("", *manifest.directories) if manifest is not None else ()
        return as_directory(key) if place.inner in names else None

    def _manifest(self, checkpoint: str) -> Manifest | None:
        """A checkpoint's manifest; waited for while it is being published. None if it is not ours.

        Raises:
            NotWholeError: It is still not published. What is there may be of several attempts.
        """
        end_s = self._clock() + PUBLISHING_S
        while True:
            manifest = self.committer.manifest(checkpoint)
            if manifest is not None:
                return manifest
            if not self.bucket.list(f"{layout.STAGING_DIR}/{checkpoint}"):
                return self.committer.manifest(checkpoint)
            if self._clock() > end_s:
                raise NotWholeError(
                    f"{checkpoint} is still not published after {PUBLISHING_S:.0f} s: look at how "
                    "the driver's node reaches the bucket, or use an older checkpoint"
                )
            time.sleep(LOOK_S)

    def _stream(self, key: str) -> ObjectStream:
        self._check_attempt(key)
        if key not in self._streams:
            self._ask_attempt(key)
        with self._parts:
            stream = self._streams.get(key)
            if stream is None:
                size_bytes = self._sizes.get(key)
                stream = self._streams[key] = self._new_stream(key, size_bytes)
            return stream

    def _new_stream(self, key: str, size_bytes: int | None = None) -> ObjectStream:
        target, (checkpoint, attempt, _) = final_key(key), _own_parts(key)
        can = self.bucket.capabilities
        is_told = size_bytes is not None
        return ObjectStream(
            partial(self._put_own, key),
            lambda chunks: self.bucket.put_stream(target, chunks, size_bytes),
            partial(self.committer.check_attempt, checkpoint, attempt),
            can.stream_bytes if is_told else can.unknown_bytes,
            can.larger if is_told or can.larger else TELL_SIZE,
        )

    def _put_own(self, key: str, data: bytes | memoryview) -> str:
        self._check_attempt(key)
        return self.committer.put_file(*_own_parts(key), data)

    def _start_put(self, key: str, data: bytes | memoryview) -> None:
        """Put a file whole, in the background."""
        self._check_attempt(key)
        put = partial(self._put_own, key, data)
        part = guard.staged_part(key)
        self._transfers.start(part, len(data), lambda: self._arrived(key, put()))

    def _check_attempt(self, key: str) -> None:
        part = guard.attempt_root(guard.staged(key))
        with self._parts:
            over = part in self._over
        if over:
            raise FileNotFoundError(f"attempt {part} was discarded; this write came too late")

    def _ask_attempt(self, key: str) -> None:
        """`_check_attempt`, also of what other processes know."""
        self._check_attempt(key)
        checkpoint, attempt, _ = _own_parts(key)
        self.committer.check_attempt(checkpoint, attempt)

    def _arrived(self, key: str, etag: str) -> None:
        part = guard.attempt_root(key)
        with self._parts:  # "" as well: an earlier put of it does not count any more
            self._etags.setdefault(part, {})[key[len(part) + 1 :]] = etag


def _take(known: dict[str, T], part: str) -> dict[str, T]:
    """Take what is known of an attempt's files out of `known`."""
    mine = [key for key in known if guard.attempt_root(key) == part]
    return {key: known.pop(key) for key in mine}


def _note_last(known: dict[str, None], part: str, kept_count: int) -> list[str]:
    """Put `part` at the end of `known`; returns what is dropped from its beginning."""
    known.pop(part, None)
    known[part] = None
    dropped = list(known)[:-kept_count]
    for old in dropped:
        del known[old]
    return dropped


def _own_parts(key: str) -> tuple[str, str, str]:
    """Checkpoint, attempt and path inside, of the key of a staged file."""
    part = guard.attempt_root(key)
    checkpoint, attempt = part.removeprefix(layout.STAGING_DIR + "/").rsplit("/", 2)[:2]
    return checkpoint, attempt, key[len(part) + 1 :]
