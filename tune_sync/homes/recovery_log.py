"""Tells what a recovery of an experiment directory did."""

from __future__ import annotations

import logging

from tune_sync.homes.recorded import Recovery

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def log_recovery(root: str, recovery: Recovery) -> None:
    """All of it. `root` is the directory."""
    if recovery.completed:
        logger.warning("%s: finished publishing %s", root, ", ".join(recovery.completed))
    if recovery.dropped:
        logger.warning(
            "%s: dropped %s: not all of it was stored when its run ended, or it was being deleted, "
            "or may have been, as a later one of its trial is stored",
            root, ", ".join(recovery.dropped),
        )  # fmt: skip
    log_forgotten(root, recovery)


def log_forgotten(root: str, recovery: Recovery) -> None:
    """What somebody else removed."""
    if recovery.forgotten:
        logger.warning(
            "%s: %s had been published, and what it held was removed, not by tune_sync; it does "
            "not count any more, and its name is free",
            root, ", ".join(recovery.forgotten),
        )  # fmt: skip
