"""The checkpoint uploads of one process, and what it knows of those of others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from tune_sync import layout
from tune_sync.errors import ConfigError, HomeLostError, NotWholeError, SyncTimeoutError
from tune_sync.homes.home import Home
from tune_sync.report import Report
from tune_sync.transfer.upload import CheckpointUpload

# Of how many checkpoints of a trial a process tells with each report, and of how many of all. A
# driver takes a checkpoint soon after its ranks reported it.
TOLD_COUNT = 8
SENT_COUNT = 64
# Of how many of a trial it remembers the attempts: of far more, for a rank that lags tells again of
# what others reported long ago, and that must not push out what they reported since. Trials do not
# push out each other's: a clone may wait long for its trial to start.
CHECKPOINTS_KEPT = 64

# `(checkpoint, attempt, rank)`: what a process is told that was sealed.
Reported = tuple[str, str, int]


@dataclass(slots=True)
class _Told:
    """What is known of one attempt.

    Attributes:
        rank: Its writer's.
        is_given_up: Its try was given up since.
        is_taken: `take` gave it, and nobody told of it since.
        is_reported: It is surely a checkpoint: not only a directory that has such a name.
    """

    rank: int
    is_reported: bool = True
    is_given_up: bool = False
    is_taken: bool = False


class Uploads:
    """Methods may be called from any thread.

    Args:
        sealed: Called after a report was sealed.
        check_key: Raises PathRefusedError for the name of a file that the destination cannot keep.
    """

    def __init__(
        self, sealed: Callable[[Report], None] = lambda report: None,
        check_key: Callable[[str], str] = layout.check_key,
    ) -> None:  # fmt: skip
        self._sealed, self._check_key = sealed, check_key
        self._uploads: dict[str, CheckpointUpload] = {}
        # By directory, checkpoint and attempt; each in the order in which it was first heard of,
        # but directories in that in which they were heard of last.
        self._reported: dict[str, dict[str, dict[str, _Told]]] = {}
        # By `drop_left`, and not begun again; its directories if no file of it was begun.
        self._left: dict[str, frozenset[str] | None] = {}
        self._lists = threading.Lock()

    def begin(
        self, home: Home, checkpoint: str, rank: int, *, goes_on: bool = False
    ) -> CheckpointUpload:  # fmt: skip
        """A new attempt: what this process wrote for that checkpoint before is dropped.

        With `goes_on` nothing was found to go on with: if another thread has begun it since, as of
        those that copy one directory, it is that thread's.

        Raises:
            ConfigError: Another thread is writing it: its bytes are not dropped under its hands.
        """
        upload = CheckpointUpload(home, checkpoint, rank, check_key=self._check_key)
        with self._lists:
            earlier = self._uploads.get(checkpoint)
            if earlier is None or not (goes_on or earlier.is_of_another_thread):
                kept = {k: u for k, u in self._uploads.items() if not u.may_be_forgotten}
                self._uploads = kept | {checkpoint: upload}
                for directory in self._left.pop(checkpoint, None) or ():
                    if goes_on:
                        upload.make_dir(directory)
        begun = self.find(checkpoint)
        if begun is not upload:
            upload.abort()
            if goes_on and begun is not None:
                return begun
            raise ConfigError(
                f"{checkpoint}: another thread of this process is reporting it just now, and Ray "
                "gave both the same name; report from one thread, or hold a lock around it"
            )
        if earlier is not None:
            earlier.abort()
        return upload

    def drop_left(self, checkpoint: str) -> None:
        """Drop what this thread left half way of others of that trial, as it reports this one.

        Their reports have failed, as a file could not be read, and the room is needed. Not for who
        copies several checkpoints before any is sealed.
        """
        if not layout.is_checkpoint_name(checkpoint.rpartition("/")[2]):
            return
        with self._lists:
            beside = layout.parent(checkpoint)
            of_trial = [k for k in self._uploads if layout.parent(k) == beside and k != checkpoint]
            left = {k: self._uploads.pop(k) for k in of_trial if self._uploads[k].is_left_here}
            self._left |= {k: upload.directories_alone for k, upload in left.items()}
            for key in list(self._left)[:-CHECKPOINTS_KEPT]:
                del self._left[key]
        for upload in left.values():
            upload.abort()

    def find(self, checkpoint: str) -> CheckpointUpload | None:
        """The latest attempt of this process, or None.

        Raises:
            NotWholeError: It was dropped as left, and somebody goes on: that is not all of it.
        """
        with self._lists:
            if self._left.get(checkpoint, frozenset()) is None:
                raise NotWholeError(
                    f"{checkpoint} was given up half way, as the thread that began it has reported "
                    "another one since; begin and copy it in one thread, then report it again"
                )
            return self._uploads.get(checkpoint)

    def copied(
        self, checkpoint: str, ranks_count: int, metrics: Mapping[Any, Any] | None = None
    ) -> None:
        """The copy of a checkpoint has come to its end. Raises as `CheckpointUpload.copied`.

        See `Seal.ranks_count`, `Seal.metrics`.
        """
        upload = self.find(checkpoint)
        if upload is not None:
            upload.copied(ranks_count, metrics)

    def seal(self, mine: str = "") -> None:
        """Seal what this process wrote: durable at home when this returns.

        What fails keeps none of the others from it, unless the home does not answer.

        Args:
            mine: A checkpoint that is reported by this thread: its failure is raised, also where
                another thread was told of it first.

        Raises:
            StoreError, OSError, …: The first that went wrong. The next call raises the second.
        """
        with self._lists:
            uploads = list(self._uploads.items())
        first: Exception | None = None
        for checkpoint, upload in uploads:
            try:
                self._seal(checkpoint, upload, checkpoint == mine)
            except Exception as error:
                if first is None:
                    first = error
                else:
                    upload.tell_later(error)
                if isinstance(error, HomeLostError | SyncTimeoutError):
                    break  # nobody waits once more for no answer
        if first is not None:
            raise first
        reported = self.find(mine)
        if reported is not None:
            reported.check()
            with self._lists:  # another thread may have sealed it
                for told in self._not_taken(mine).values():
                    told.is_reported = True

    def _seal(self, checkpoint: str, upload: CheckpointUpload, is_reported: bool) -> None:
        is_first = upload.sealed_bytes is None
        if upload.seal():
            sealed = ((checkpoint, upload.reported_as, upload.rank),)
            self.heard_of(sealed, is_reported=is_reported)
            if is_first:
                self._tell_sealed(upload)

    def _tell_sealed(self, upload: CheckpointUpload) -> None:
        blocked_s = time.monotonic() - upload.began_s
        is_staged = upload.reported_as != upload.attempt
        self._sealed(Report(blocked_s, upload.sealed_bytes or 0, is_staged))

    def heard_of(self, reported: Iterable[Reported], *, is_reported: bool = True) -> None:
        """Note attempts sealed by processes that reported to this one."""
        with self._lists:
            for checkpoint, attempt, rank in reported:
                directory = layout.parent(checkpoint)
                beside = self._reported[directory] = self._reported.pop(directory, {})
                told = beside.setdefault(checkpoint, {}).setdefault(
                    attempt, _Told(rank, is_reported=is_reported)
                )
                told.is_taken = False
                if len(beside) > CHECKPOINTS_KEPT:
                    others = [c for c in beside if c != checkpoint]
                    unreported = (c for c in others if not _is_reported(beside[c]))
                    del beside[next(unreported, others[0])]

    def reported(self) -> tuple[Reported, ...]:
        """What this process sealed, or heard of, last, and does not know to be given up."""
        with self._lists:
            newest = (
                (checkpoint, attempts)
                for beside in reversed(self._reported.values())
                for checkpoint, attempts in _newest(beside)
            )
            return tuple(
                (checkpoint, attempt, told.rank)
                for checkpoint, attempts in reversed(list(islice(newest, SENT_COUNT)))
                for attempt, told in attempts.items()
                if not told.is_given_up and not told.is_taken
            )

    def give_up(self, directory: str) -> None:
        """Whoever reported checkpoints in a directory is gone: what comes now is another try."""
        with self._lists:
            for known, beside in self._reported.items():
                if known == directory or known.startswith(f"{directory}/"):
                    for told in chain.from_iterable(a.values() for a in beside.values()):
                        told.is_given_up = True

    def forget(self, directory: str) -> None:
        """The trial there has ended: what was taken of it is not asked for again.

        Not sooner: who tells of that again would have it for new, of a try that was given up.
        """
        with self._lists:
            ended = [d for d in self._reported if layout.below(directory, d) is not None]
            for each in ended:
                beside = self._reported.pop(each)
                left = {c: a for c, a in beside.items() if not all(t.is_taken for t in a.values())}
                if left:
                    self._reported[each] = left

    def reported_at(self, checkpoint: str) -> list[str]:
        """What `checkpoint` is made of: the last attempt of each rank that reported it."""
        with self._lists:
            return _of_last_try(self._not_taken(checkpoint))

    def newest_left(self, directory: str) -> str:
        """The newest checkpoint in a directory that nobody has taken, or ""."""
        with self._lists:
            left = (c for c in self._reported.get(directory, ()) if self._not_taken(c))
            return max(left, key=layout.by_age, default="")

    def take(self, checkpoint: str) -> list[str]:
        """`reported_at`, and not again, unless somebody tells of them again."""
        with self._lists:
            attempts = self._not_taken(checkpoint)
            for told in attempts.values():
                told.is_taken = True
            return _of_last_try(attempts)

    def _not_taken(self, checkpoint: str) -> dict[str, _Told]:
        known = self._reported.get(layout.parent(checkpoint), {}).get(checkpoint, {})
        return {attempt: told for attempt, told in known.items() if not told.is_taken}


def _is_reported(attempts: Mapping[str, _Told]) -> bool:
    return any(told.is_reported for told in attempts.values())


def _newest(beside: dict[str, dict[str, _Told]]) -> list[tuple[str, dict[str, _Told]]]:
    """The newest checkpoints of a trial, and the newest of those that are surely reported.

    A trial may write directories with such names as artifacts: no driver ever takes them.
    """
    newest = list(reversed(beside.items()))
    surely = [checkpoint for checkpoint, attempts in newest if _is_reported(attempts)]
    told = {*surely[:TOLD_COUNT], *(checkpoint for checkpoint, _ in newest[:TOLD_COUNT])}
    return [each for each in newest if each[0] in told]


def _of_last_try(attempts: Mapping[str, _Told]) -> list[str]:
    """Leave out what nobody waits for: a rank's earlier attempts, and those of earlier tries."""
    of_last = {a: told for a, told in attempts.items() if not told.is_given_up} or attempts
    newest = {told.rank: attempt for attempt, told in of_last.items()}
    return [attempt for attempt, told in of_last.items() if newest[told.rank] == attempt]
