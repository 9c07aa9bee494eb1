"""Removes what nobody came back for from the staging of a node, and has it leave its memory."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from tune_sync import layout
from tune_sync.behind.left_behind import find, move_to_disk
from tune_sync.homes.store import LocalStore

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# What nobody came back for is removed after so long. A shorter time would lose what was reported
# when a machine is repaired and its experiment restored; a longer one fills disks for nobody.
LEFT_AGE_S = 14 * 24 * 3600.0
# Memory is too dear for that: it moves to the disk after so long.
MEMORY_AGE_S = 3600.0


def sweep_old(staging: Path, now_s: float) -> list[Path]:
    """Remove what nobody came back for; returns it."""
    removed = []
    for left in (left for left in find(staging) if now_s - left.seen_s > LEFT_AGE_S):
        days = LEFT_AGE_S / 24 / 3600
        why = f"it was staged for {left.where}, which nobody has resumed for {days:.0f} days"
        try:
            with left.taken() as is_free:
                if is_free:
                    left.remove()
                    removed.append(left.root)
                    logger.warning("removed %s: %s", left.root, why)
        except OSError as error:
            logger.warning("%s cannot be removed: %s; %s", left.root, error, why)
    return removed


def sweep_memory(folder: Path, staging: Path, now_s: float) -> list[Path]:
    """Move what nobody came back for from memory to the disk; returns where that is now.

    Args:
        folder: In shared memory.
        staging: On the disk.
        now_s: Seconds since the epoch.
    """
    moved = []
    for left in find(folder):
        if now_s - left.seen_s > MEMORY_AGE_S:
            target = staging / left.owner / left.node
            try:
                with left.taken() as is_free:
                    if is_free and move_to_disk(left.root, target):
                        moved.append(target)
            except OSError as error:
                logger.warning("%s stays in memory: %s", left.root, error)
    return moved


def sweep_trash(memory: Path) -> None:
    """Remove what an agent that was killed had begun to remove from a run's memory."""
    store = LocalStore(memory)
    for entry in store.list(layout.TRASH_DIR):
        with suppress(OSError):
            store.remove_tree(entry.key)
