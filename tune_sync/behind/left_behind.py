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
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tune_sync import layout
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import DamagedError, ImmutableError, PathRefusedError
from tune_sync.homes.home import Home
from tune_sync.manifest import Seal

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

MARK, LOCK = "staged_for.json", "agent.lock"
# What nobody came back for is removed after so long. A shorter time would lose what was reported
# when a machine is repaired and its experiment restored; a longer one fills disks for nobody.
LEFT_AGE_S = 14 * 24 * 3600.0


def staging_root(given: str) -> Path:
    """Where nodes stage: what was given, or a directory of this user's below the temporary one."""
    return Path(given) if given else Path(tempfile.gettempdir(), f"tune_sync-{os.getuid()}")


class Claim:
    """An agent's hold on its staging directory, for as long as its process lives.

    Args:
        root: The staging directory of a run on this node.
        where: The experiment.
    """

    def __init__(self, root: Path, where: str) -> None:
        self._dir = root / layout.INTERNAL_DIR
        self._where = where
        self._lock: IO[str] | None = None
        self.renew()

    def renew(self) -> None:
        """Say again whose it is. On a full disk it is said the next time."""
        mark = self._dir / MARK
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = _locked(self._dir)
            if not mark.exists():
                mark.with_suffix(".new").write_text(
                    json.dumps({"format_version": 1, "experiment": self._where})
                )
                mark.with_suffix(".new").rename(mark)
            os.utime(mark)
        except OSError as error:
            logger.debug("%s: %s", mark, error)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A staging directory that is marked.

    Attributes:
        root: The directory.
        where: The experiment.
        owner: The run.
        node: The Ray node, as it was called then.
        seen_s: When its agent was last alive, in seconds since the epoch.
    """

    root: Path
    where: str
    owner: str
    node: str
    seen_s: float

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Whether nobody uses it; then nobody else takes it meanwhile."""
        lock = None
        with suppress(OSError):
            lock = _locked(self.root / layout.INTERNAL_DIR)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.close()

    def remove(self) -> None:
        """Remove it, and the run's directory if that is empty then."""
        shutil.rmtree(self.root, ignore_errors=True)
        with suppress(OSError):
            self.root.parent.rmdir()


def find(staging: Path) -> list[LeftBehind]:
    """All marked directories of a node."""
    found = []
    for mark in sorted(staging.glob(f"*/*/{layout.INTERNAL_DIR}/{MARK}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            root = mark.parents[1]
            where = str(json.loads(mark.read_text())["experiment"])
            seen_s = mark.stat().st_mtime
            found.append(LeftBehind(root, where, root.parent.name, root.name, seen_s))
    return found


def sweep_old(staging: Path, now_s: float) -> list[Path]:
    """Remove what nobody came back for; returns it."""
    removed = []
    for left in find(staging):
        if now_s - left.seen_s > LEFT_AGE_S:
            with left.taken() as is_free:
                if is_free:
                    left.remove()
                    removed.append(left.root)
                    logger.warning(
                        "removed %s: it was staged for %s, which nobody has resumed for %.0f days",
                        left.root, left.where, LEFT_AGE_S / 24 / 3600,
                    )  # fmt: skip
    return removed


def send_left(left: LeftBehind, home: Home, is_wanted: Callable[[str], bool | None]) -> list[str]:
    """Send what was reported and is still wanted, and remove the rest; returns what was sent.

    Call it with the directory `taken`. What was sent is sealed at the destination, not published.

    Args:
        left: The directory.
        home: The destination.
        is_wanted: Of a checkpoint's key; None if it is none of this experiment, and stays.

    Raises:
        Exception: What the destination raises; what is not sent stays.
    """
    copies = StagedCopies(left.root)
    sent, stays = [], False
    for checkpoint, attempt, seal in _in_order(copies):
        wanted = is_wanted(checkpoint)
        if wanted is None or (seal is None and not copies.is_abandoned(checkpoint, attempt)):
            stays = True
            continue
        if wanted and seal is not None and _send(copies, checkpoint, seal, home):
            sent.append(checkpoint)
        copies.remove(checkpoint, attempt)
    if not stays:
        left.remove()
    return sent


def _in_order(copies: StagedCopies) -> list[tuple[str, str, Seal | None]]:
    """The oldest first, as they were sealed."""
    found: list[tuple[str, str, Seal | None]] = []
    for checkpoint, attempt in copies.attempts():
        try:
            found.append((checkpoint, attempt, copies.seal(checkpoint, attempt)))
        except DamagedError as error:
            logger.warning("%s: %s", copies.root, error)
    return sorted(found, key=lambda one: one[2].sealed_s if one[2] else 0.0)


def _send(copies: StagedCopies, checkpoint: str, seal: Seal, home: Home) -> bool:
    """Whether it was sent: not if it was not all of a report, or was stored before."""
    if seal.ranks_count is None or copies.stored_as(checkpoint, seal.attempt):
        return False
    try:
        send_attempt(copies, checkpoint, seal, home)
    except (DamagedError, ImmutableError, PathRefusedError) as error:
        logger.error("%s cannot be sent: %s", checkpoint, error)
        return False
    return True


def _locked(directory: Path) -> IO[str] | None:
    """The lock in a directory; None if another process has it."""
    lock = open(directory / LOCK, "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock
