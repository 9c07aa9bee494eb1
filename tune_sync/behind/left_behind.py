"""Staging that nobody sends from any more: its node has crashed, or its agent could not go on.

```
<staging>/<run>/<node>/.tune_sync/staged_for.json   whose it is; touched while its agent lives
                                  agent.lock        locked while its agent lives
```
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tune_sync import layout
from tune_sync.behind.confirm import confirm
from tune_sync.behind.failures import Failures
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import (
    DamagedError,
    ImmutableError,
    PathRefusedError,
    UnreadableManifestError,
)
from tune_sync.homes.home import Home
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import LocalStore, sync_with_all_above
from tune_sync.manifest import Seal

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

MARK, LOCK = "staged_for.json", "agent.lock"
_OLDER = (
    "%s was staged on node %s and is not stored; it is dropped, as a later one of its trial is "
    "stored: it may have been deleted (num_to_keep, keep_best, sync_on_checkpoint=False)"
)


class Claim:
    """An agent's hold on its staging directory, for as long as its process lives.

    Args:
        root: The staging directory of a run on this node.
        where: The experiment.
        begun_by: See `Spec.begun_by`.
    """

    def __init__(self, root: Path, where: str, begun_by: str = "") -> None:
        self._dir = root / layout.INTERNAL_DIR
        self._where, self._begun_by = where, begun_by
        self._lock: IO[str] | None = None
        self.renew()

    def renew(self) -> None:
        """Say again whose it is. On a full disk it is said the next time."""
        try:
            # The last one to use it may have removed it, and only this user may enter.
            self._dir.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
            self._dir.mkdir(parents=True, exist_ok=True)
            if self._lock is None:
                with suppress(OSError):  # a restore says what is wrong with it
                    self._lock = _locked(self._dir)
            os.utime(mark_as(self._dir.parent, self._where, self._begun_by))
        except OSError as error:
            logger.debug("%s: %s", self._dir, error)

    def give_up(self) -> None:
        """Let a restore take what is here, before this process has ended."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def mark_as(root: Path, where: str, begun_by: str = "") -> Path:
    """Say whose a staging directory is, if nobody has: a restore finds it by that.

    Raises:
        OSError: The disk does not take it.
    """
    mark = root / layout.INTERNAL_DIR / MARK
    if not mark.exists():
        store, key = LocalStore(root), f"{layout.INTERNAL_DIR}/{MARK}"
        store.make_dir(layout.INTERNAL_DIR)
        sync_with_all_above(root)
        body = {"format_version": 1, "experiment": where, "begun_by": begun_by}
        replace_file(
            store, key, json.dumps(body).encode(), fresh=f"{key}.{os.getpid()}"
        )  # others may, too
    return mark


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A staging directory that is marked.

    Attributes:
        root: The directory.
        where: The experiment.
        owner: The run.
        node: The Ray node, as it was called then.
        seen_s: When its agent was last alive, in seconds since the epoch.
        begun_by: See `Spec.begun_by`; older versions did not note it.
    """

    root: Path
    where: str
    owner: str
    node: str
    seen_s: float
    begun_by: str = ""

    def is_of_another(self, begun_by: str) -> bool:
        """Whether it was left of another experiment, as far as both are known."""
        return bool(self.begun_by and begun_by) and self.begun_by != begun_by

    def trials(self) -> list[str]:
        """The directories of trials of which something was reported."""
        found = _in_order(StagedCopies(self.root), [])
        return sorted({layout.parent(checkpoint) for checkpoint, _, seal in found if seal})

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Whether nobody uses it; then nobody else takes it meanwhile.

        Raises:
            OSError: That cannot be known, as on a file system without locks.
        """
        lock = None
        with suppress(FileNotFoundError):  # who had it has removed it
            lock = _locked(self.root / layout.INTERNAL_DIR)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.close()

    def remove(self) -> None:
        """Remove it, and the run's directory if that is empty then."""
        StagedCopies(self.root).remove_all()
        with suppress(OSError):
            self.root.parent.rmdir()


def find(staging: Path) -> list[LeftBehind]:
    """All marked directories of a node."""
    found = []
    for mark in sorted(staging.glob(f"*/*/{layout.INTERNAL_DIR}/{MARK}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            root, body = mark.parents[1], json.loads(mark.read_text())
            where, begun_by = str(body["experiment"]), str(body.get("begun_by", ""))
            run, node, seen_s = root.parent.name, root.name, mark.stat().st_mtime
            found.append(LeftBehind(root, where, run, node, seen_s, begun_by))
    return found


def remove_sent(roots: Iterable[Path]) -> bool:
    """Remove a run's staging on this node, but for where something was reported and is not stored.

    What is written there from now on fails: it could be reported, and then be removed.

    Returns:
        Whether all has gone; a later restore finds what has not.
    """
    has_gone = True
    for root in roots:
        aside = root.with_name(f"{root.name}.ending")
        if not _is_removed(aside):  # an agent was killed here before: both are found by a restore
            has_gone = False
            continue
        with suppress(FileNotFoundError):
            root.rename(aside)
        if not _is_removed(aside):
            has_gone = False
            with suppress(OSError):  # it is found by this name too
                aside.rename(root)
            continue
        with suppress(OSError):  # another node of this machine may use it
            root.parent.rmdir()
    return has_gone


def _is_removed(aside: Path) -> bool:
    copies = StagedCopies(aside)
    if _has_unsent(copies):
        return False
    copies.remove_all()
    return True


def _has_unsent(copies: StagedCopies) -> bool:
    unlisted: list[OSError] = []
    found = _in_order(copies, unlisted)
    return bool(unlisted) or any(
        seal is not None and seal.ranks_count is not None
        and not copies.stored_as(checkpoint, attempt)
        for checkpoint, attempt, seal in found
    )  # fmt: skip


def move_to_disk(memory: Path, disk: Path) -> bool:
    """Move what was reported from a run's memory to its staging on the disk; whether it could be.

    Call it when nobody uses either.
    """
    source, target = StagedCopies(memory), StagedCopies(disk)
    mark = memory / layout.INTERNAL_DIR / MARK
    try:
        body = json.loads(mark.read_text())
        of = str(body["experiment"]), str(body.get("begun_by", ""))
        shutil.copystat(mark, mark_as(disk, *of))  # also its time
        for checkpoint, attempt, seal in _in_order(source):
            if seal is not None:
                if not target.is_sealed(checkpoint, attempt):  # else who copied it was killed then
                    target.remove(checkpoint, attempt)
                    _copy(source, target, checkpoint, attempt)
                _confirm(target, checkpoint, seal)
            source.remove(checkpoint, attempt)
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s stays in memory: it cannot be moved to %s: %s", memory, disk, error)
        return False
    logger.warning("moved what was staged in %s to %s: nobody sends it now", memory, disk)
    source.remove_all()
    with suppress(OSError):
        memory.parent.rmdir()
    return True


def _confirm(copies: StagedCopies, checkpoint: str, seal: Seal) -> None:
    try:
        confirm(copies, checkpoint, seal)
    except DamagedError as error:
        logger.error("%s is lost: %s", checkpoint, error)


def _copy(source: StagedCopies, target: StagedCopies, checkpoint: str, attempt: str) -> None:
    key, on_way = layout.attempt_key(checkpoint, attempt), f"{layout.TRASH_DIR}/{attempt}"
    target.store.make_dir(layout.TRASH_DIR)
    target.store.make_dir(layout.parent(key))
    try:
        shutil.copytree(source.store.path(key), target.store.path(on_way))
        target.store.sync_tree(on_way)
        target.store.rename(on_way, key)
    finally:
        target.store.remove_tree(on_way)


def send_left(
    left: LeftBehind, home: Home, is_wanted: Callable[[str], bool | None],
    moved: Callable[[], None] = lambda: None, sent: list[str] | None = None,
    is_stored: Callable[[str], bool] = lambda checkpoint: False,
) -> list[str]:  # fmt: skip
    """Send what was reported and is still wanted, and remove the rest; returns what was sent.

    Call it with the directory `taken`. What was sent is sealed at the destination, not published.

    Args:
        left: The directory.
        home: The destination.
        is_wanted: Of a checkpoint's key; None if it is none of this experiment, and stays.
        moved: Called again and again as long as this gets on.
        sent: Here what was sent is added, also if an error is raised then.
        is_stored: Whether the destination has it: then nobody misses it here.

    Raises:
        DamagedOnWayError: See `send_attempt`; what is not sent stays, and the others are sent.
        Exception: What the destination raises, or this disk; here too. See `Failures`.
    """
    copies, failures, sent = StagedCopies(left.root), Failures(), [] if sent is None else sent
    unlisted, unknown = list[OSError](), set[str]()
    found = _in_order(copies, unlisted)
    stays = bool(unlisted)
    for checkpoint, attempt, seal in found:
        moved()
        wanted = is_wanted(checkpoint)
        if wanted is None and seal is not None:
            unknown.add(layout.parent(checkpoint))
        if wanted is None or (seal is None and not copies.is_abandoned(checkpoint, attempt)):
            stays = True
            continue
        with failures.kept(checkpoint):
            if wanted and seal is not None and _send(copies, checkpoint, seal, home, moved):
                sent.append(checkpoint)
            elif not wanted and _is_missed(copies, checkpoint, attempt, seal, is_stored):
                logger.warning(_OLDER, checkpoint, left.node)
            copies.remove(checkpoint, attempt)
    if unlisted:
        logger.warning("%s keeps what cannot be looked at: %s", left.root, unlisted[0])
    if unknown:
        logger.warning(
            "%s keeps what was reported in %s: no trial of the restored experiment is known there",
            left.root, ", ".join(map(repr, sorted(unknown))),
        )  # fmt: skip
    failures.check()
    if not stays:
        left.remove()
    return sent


def _is_missed(
    copies: StagedCopies, checkpoint: str, attempt: str, seal: Seal | None,
    is_stored: Callable[[str], bool],
) -> bool:  # fmt: skip
    """Whether it was reported, and was never stored."""
    is_whole = seal is not None and seal.ranks_count is not None
    return is_whole and not is_stored(checkpoint) and not copies.stored_as(checkpoint, attempt)


def _in_order(
    copies: StagedCopies, unlisted: list[OSError] | None = None
) -> list[tuple[str, str, Seal | None]]:
    """The oldest first, as they were sealed. See `StagedCopies.attempts`."""
    found: list[tuple[str, str, Seal | None]] = []
    for checkpoint, attempt in copies.attempts(None if unlisted is None else unlisted.append):
        try:
            found.append((checkpoint, attempt, copies.seal(checkpoint, attempt)))
        except DamagedError as error:
            logger.warning("%s: %s", copies.root, error)
        except OSError as error:
            if unlisted is None:
                raise
            unlisted.append(error)
    return sorted(found, key=lambda one: one[2].sealed_s if one[2] else 0.0)


def _send(
    copies: StagedCopies, checkpoint: str, seal: Seal, home: Home, moved: Callable[[], None]
) -> bool:
    """Whether it was sent: not if it was not all of a report.

    What was stored before and is still wanted was lost there since.
    """
    if seal.ranks_count is None:
        return False

    def go_on(_: int) -> bool:
        moved()
        return True

    try:
        send_attempt(copies, checkpoint, seal, home, go_on)
    except UnreadableManifestError:
        raise
    except (DamagedError, ImmutableError, PathRefusedError, FileNotFoundError) as error:
        if isinstance(error, FileNotFoundError) and copies.is_there(checkpoint, seal):
            raise  # of the destination
        logger.error("%s cannot be sent: %s", checkpoint, error)
        return False
    return True


def _locked(directory: Path) -> IO[str] | None:
    """The lock in a directory; None if another process has it. Raises OSError where it cannot."""
    try:
        lock = open(directory / LOCK, "a")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
    except BlockingIOError:
        return None
    except OSError as error:
        why = f"it cannot be locked ({error.strerror}), so nothing there is used or removed"
        raise OSError(error.errno, why, str(directory / LOCK)) from error
    return lock
