"""`SpillingHome`: stages on this node; what finds no room there *spills* to the destination.

The disk may get full at any write: by another program, a quota, or what is staged. What was written
of that attempt till then is sent to the destination, and the rest of it goes there directly: such a
report takes as long as one that waits for the destination. Nobody has to say it again.

One in memory has one on the disk as its destination, and that has the real one.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash

from tune_sync import guard, layout
from tune_sync.behind.attempt_here import AttemptHere, FileHere
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import (
    DamagedError,
    FixCallError,
    StoreError,
    StoreFullError,
    SyncTimeoutError,
    TuneSyncError,
)
from tune_sync.homes.bucket.streams import GivenUpError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Home, LocalHome, NoLinksError, Piece
from tune_sync.homes.store import free_bytes
from tune_sync.manifest import FileEntry, Seal
from tune_sync.sending.orders import AT
from tune_sync.transfer.chunks import CHUNK_BYTES

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

T = TypeVar("T")

# How often it looks again if there is neither room here nor an answer of the destination.
LOOK_S = 1.0
# Less than that is no room: free space goes up and down on any disk that is used.
ROOM_BYTES = 1 << 20
# A full disk is told so often: each report would say the same.
SAY_S = 60.0
INSTEAD = "goes to its destination directly, and its report waits for that"
# Attempts that are remembered after their seal, as a seal may grow.
KEPT_COUNT = 64


class SpillingHome:
    """The verbs of `Home` that concern attempts. Methods may be called from any thread.

    Args:
        local: The staging directory.
        destination: Where everything goes in the end.
        node: The Ray node's id.
        make_room: Removes what this node need not keep.
        wait_for_room: Called before an attempt at a checkpoint is begun here.
        instead: Says what happens to a checkpoint that spills.
        say_s: How often that is said.
        timeout_s: How long to wait if there is neither room nor an answer of the destination.
        clock: Monotonic seconds.
        sleep: Waits for seconds.
    """

    def __init__(
        self, local: LocalHome, destination: Home | SpillingHome, node: str, *,
        make_room: Callable[[], None] = lambda: None,
        wait_for_room: Callable[[str], None] = lambda checkpoint: None,
        instead: str = INSTEAD, say_s: float = SAY_S, timeout_s: float = 1800.0,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._local = local
        self._copies = StagedCopies(local.root)
        self._destination = destination
        self._node = node
        self._make_room = make_room
        self._wait_for_room = wait_for_room
        self._instead = instead
        self._say_s = say_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._said_s: dict[int, float] = {}
        self._attempts: dict[str, AttemptHere] = {}
        self._names = threading.Lock()

    def reported_as(self, attempt: str) -> str:
        """See `Home.reported_as`."""
        found = self._find(attempt)
        if found is not None and found.there:
            return self._destination.reported_as(found.there)
        return f"{attempt}{AT}{self._node}"

    def is_staged(self, attempt: str) -> bool:
        """Whether an attempt is on this node, and has to be sent on."""
        found = self._find(attempt)
        if found is None or not found.there:
            return True
        below = self._destination
        return isinstance(below, SpillingHome) and below.is_staged(found.there)

    def make_here(self, size_bytes: int) -> Path | None:
        """See `Home.make_directory`; None, which is told, if there is no room here."""
        try:
            return self._local.make_directory(size_bytes)
        except (OSError, StoreError) as error:
            self._say("a checkpoint that is to be made", [error])
            return None

    def begin(self, checkpoint: str, *, is_there: bool = False) -> str:
        """See `Home.begin`. `is_there`: not here, but where it would spill to."""
        self._wait_for_room(checkpoint)
        ways = [partial(self._begin_here, checkpoint), partial(self._begin_there, checkpoint)]
        found = self._first_that_works(checkpoint, *(ways[1:] if is_there else ways))
        with self._names:
            self._attempts[found.name] = found
            sealed = [a.name for a in self._attempts.values() if a.is_sealed or a.there]
            for name in sealed[: max(0, len(self._attempts) - KEPT_COUNT)]:
                del self._attempts[name]
        return found.name

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`."""

        def note(attempt: AttemptHere) -> None:
            attempt.file(key).expected_bytes = size_bytes

        self._put(key, lambda home, to: home.expect(to(key), size_bytes), note)

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`."""

        def note(attempt: AttemptHere) -> None:
            attempt.file(key).size_bytes = offset_bytes + len(data)

        self._put(key, lambda home, to: home.write(to(key), offset_bytes, data), note)

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`."""

        def note(attempt: AttemptHere) -> None:
            for piece in pieces:
                attempt.files[piece.key] = FileHere(piece.length_bytes, is_batched=True)

        self._put(
            pieces[0].key,
            lambda home, to: home.write_batch([replace(p, key=to(p.key)) for p in pieces], data),
            note,
        )

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        attempt = self._of(target)
        if attempt is not None:
            attempt.same_as[target] = source
        self._put(
            target,
            lambda home, to: home.link(to(source), to(target)),
            lambda attempt: attempt.links.append((source, target)),
        )

    def take(self, key: str, source: Path, *, is_given: bool) -> FileEntry | None:
        """See `Home.take`."""
        attempt = self._of(key)
        if attempt is None:
            return None
        with attempt.writing():
            if attempt.has_spilled():
                found = self._destination.take(attempt.key_there(key), source, is_given=is_given)
                return found and replace(found, path=key)
            found = self._local.take(key, source, is_given=is_given)
            if found is not None:
                attempt.took(key, found.size_bytes)
        return found

    def flush(self, key: str) -> None:
        """See `Home.flush`."""
        self._put(key, lambda home, to: home.flush(to(key)))

    def finish(self, key: str) -> None:
        """See `Home.finish`."""

        def note(attempt: AttemptHere) -> None:
            attempt.file(key).is_finished = True

        self._put(key, lambda home, to: home.finish(to(key)), note)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        here = layout.staged_key(checkpoint, seal.attempt)

        def seal_at(home: Home | SpillingHome, to: Callable[[str], str]) -> None:
            attempt = to(here).split("/")[-2]
            there = replace(seal, attempt=attempt)
            home.seal(checkpoint, there if home is self._local else self._with_digests(there, seal))

        def note(attempt: AttemptHere) -> None:
            attempt.is_sealed = True

        self._put(here, seal_at, note)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`."""
        with self._names:
            found = self._attempts.pop(attempt, None)
        self._local.discard_attempt(checkpoint, attempt)
        if found is not None and found.there:
            self._destination.discard_attempt(checkpoint, found.there)

    # Inside

    def _with_digests(self, there: Seal, here: Seal) -> Seal:
        """The seal of what has spilled: what was handed over before has been read meanwhile."""
        attempt = self._find(here.attempt)
        if attempt is None:
            return there
        top = layout.staged_key(attempt.checkpoint, attempt.name)
        return there.confirmed(lambda path: attempt.digest(f"{top}/{path}"))

    def _find(self, attempt: str) -> AttemptHere | None:
        with self._names:
            return self._attempts.get(attempt)

    def _of(self, key: str) -> AttemptHere | None:
        return self._find(guard.attempt_root(key).split("/")[-2])

    def _put(
        self, key: str, put: Callable[[Home | SpillingHome, Callable[[str], str]], None],
        note: Callable[[AttemptHere], None] = lambda attempt: None,
    ) -> None:  # fmt: skip
        """Do it here, or where the attempt has spilled to."""
        attempt = self._of(key)
        if attempt is None:
            put(self._local, lambda key: key)
            return
        while not attempt.has_spilled():
            with attempt.writing():
                if attempt.has_spilled():
                    break
                try:
                    put(self._local, lambda key: key)
                    note(attempt)
                    return
                except StoreFullError as error:
                    full = error
            self._find_room(attempt, full)
        self._put_there(attempt, lambda: put(self._destination, attempt.key_there))

    def _put_there(self, attempt: AttemptHere, put: Callable[[], None]) -> None:
        """Go on trying if the destination does not answer: what was here is gone.

        A stream to a bucket that broke off cannot be gone on with, and says so.
        """
        end_s, failed = self._clock() + self._timeout_s, None
        while True:
            try:
                return put()
            except (FixCallError, FileNotFoundError):  # not for want of an answer
                raise
            except (OSError, StoreError) as error:
                # One below has waited for its own; one of a request in the background stays so.
                if isinstance(self._destination, SpillingHome) or _kept(error) is _kept(failed):
                    raise
                failed = error
            except (DamagedError, GivenUpError):
                if failed is None:
                    raise
                raise failed from None
            errors = [StoreFullError(errno.ENOSPC, "there was no place"), failed]
            if self._clock() >= end_s:
                raise self._no_way(attempt.checkpoint, errors) from failed
            self._say(attempt.checkpoint, errors)
            self._sleep(LOOK_S)

    def _find_room(self, attempt: AttemptHere, full: StoreFullError) -> None:
        """Make room here, or spill the attempt; returns when one of the two was done."""
        with attempt.moving():
            if not attempt.there:
                self._first_that_works(
                    attempt.checkpoint,
                    partial(self._try_room, full, free_bytes(self._local.root)),
                    partial(self._spill, attempt),
                )

    def _try_room(self, full: StoreFullError, before_bytes: int) -> None:
        with suppress(Exception):  # the agent may be starting just now
            self._make_room()
        if free_bytes(self._local.root) < before_bytes + ROOM_BYTES:
            raise full

    def _begin_here(self, checkpoint: str) -> AttemptHere:
        return AttemptHere(checkpoint, self._local.begin(checkpoint))

    def _begin_there(self, checkpoint: str) -> AttemptHere:
        name = self._destination.begin(checkpoint)
        return AttemptHere(checkpoint, name, there=name)

    def _spill(self, attempt: AttemptHere) -> None:
        there = self._destination.begin(attempt.checkpoint)
        try:
            self._send(replace(attempt, there=there))
        except BaseException:
            with suppress(TuneSyncError, OSError):
                self._destination.discard_attempt(attempt.checkpoint, there)
            raise
        attempt.there = there
        if not attempt.is_sealed:
            self._copies.remove(attempt.checkpoint, attempt.name)

    def _send(self, attempt: AttemptHere) -> None:
        """Send what is here of an attempt, as if it had been written there."""
        for pieces in attempt.batches():
            parts = [self._local.read(p.key, 0, p.length_bytes) for p in pieces]
            for piece, part in zip(pieces, parts, strict=True):
                attempt.file(piece.key).digest = digest_of(part)
            there = [replace(p, key=attempt.key_there(p.key)) for p in pieces]
            self._destination.write_batch(there, b"".join(parts))
        for key, file in attempt.files.items():
            if not file.is_batched:
                self._send_file(key, attempt.key_there(key), file)
        for source, target in attempt.links:
            self._destination.flush(attempt.key_there(source))
            try:
                self._destination.link(attempt.key_there(source), attempt.key_there(target))
            except NoLinksError:
                size_bytes = attempt.file(source).size_bytes
                again = FileHere(size_bytes, size_bytes, is_finished=True)
                self._send_file(target, attempt.key_there(target), again)

    def _send_file(self, key: str, target: str, file: FileHere) -> None:
        if file.expected_bytes is not None:
            self._destination.expect(target, file.expected_bytes)
        digest = xxhash.xxh3_128()
        for start in range(0, file.size_bytes, CHUNK_BYTES):
            size_bytes = min(CHUNK_BYTES, file.size_bytes - start)
            data = self._local.read(key, start, size_bytes)
            digest.update(data)
            self._destination.write(target, start, data)
        file.digest = digest.hexdigest()
        if file.is_finished:
            self._destination.finish(target)

    def _first_that_works(self, checkpoint: str, *ways: Callable[[], T]) -> T:
        """Try each way, for as long as it takes; tells that there is no room."""
        end_s = self._clock() + self._timeout_s
        while True:
            errors: list[Exception] = []
            for way in ways:
                try:
                    return way()
                except (FixCallError, FileNotFoundError):  # not for lack of room: it was discarded
                    raise
                except SyncTimeoutError as error:
                    if isinstance(self._destination, SpillingHome):  # which has waited for room
                        raise
                    errors.append(error)
                    self._say(checkpoint, errors)
                except (OSError, StoreError) as error:
                    errors.append(error)
                    self._say(checkpoint, errors)
            if self._clock() >= end_s:
                raise self._no_way(checkpoint, errors) from errors[0]
            self._sleep(LOOK_S)

    def _say(self, checkpoint: str, errors: Sequence[Exception]) -> None:
        now_s = self._clock()
        if now_s - self._said_s.get(len(errors), float("-inf")) < self._say_s:
            return
        self._said_s[len(errors)] = now_s
        if len(errors) == 1:
            why = getattr(errors[0], "strerror", None) or errors[0]  # "[Errno 28]" tells nothing
            logger.warning(
                "%s %s, and nothing is lost: there is no place in %s of node %s (%s)",
                checkpoint, self._instead,
                self._local.root, self._node, why,
            )  # fmt: skip
        else:
            logger.warning("%s", self._no_way(checkpoint, errors))

    def _no_way(self, checkpoint: str, errors: Sequence[Exception]) -> StoreFullError:
        return StoreFullError(
            errno.ENOSPC,
            f"{checkpoint}: node {self._node} cannot stage in {self._local.root} ({errors[0]}), "
            f"and its destination does not take it either ({errors[-1]}); make room there, choose "
            "another staging_dir, or see to it that the destination answers",
        )


def _kept(error: Exception | None) -> BaseException | None:
    return getattr(error, "kept", error)
