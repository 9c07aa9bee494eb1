"""What the environment says to every process that uses tune_sync: how much it logs."""

from __future__ import annotations

import logging
import os

from tune_sync.errors import ConfigError

LOG_LEVEL = "TUNE_SYNC_LOG_LEVEL"
# What has to do with a run goes below "ray", which Ray shows on the driver; the rest needs no Ray.
LOGGERS = ("ray.tune_sync", "tune_sync")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def set_log_level() -> None:
    """Set it as the environment says; where that says nothing, leave it as it is.

    Raises:
        ConfigError: It is none of `LEVELS`.
    """
    wanted = os.environ.get(LOG_LEVEL, "")
    if wanted and wanted.upper() not in LEVELS:
        raise ConfigError(f"{LOG_LEVEL}={wanted!r}: give one of {', '.join(LEVELS)}")
    for name in LOGGERS if wanted else ():
        logging.getLogger(name).setLevel(wanted.upper())
