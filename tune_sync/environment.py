"""What the environment says to every process that uses tune_sync, and to trials of Ray."""

from __future__ import annotations

import logging
import os

from tune_sync.errors import ConfigError

# Of Ray: whether a trial works in its own directory. A driver hands it on to its trials.
CHDIR = "RAY_CHDIR_TO_TRIAL_DIR"
# Of Ray: how many characters of a trial's name and settings its directory is called by.
LONGEST, LONGEST_COUNT = "TUNE_MAX_LEN_IDENTIFIER", "130"
# Of Ray: that it makes no loggers of its own for `result.json` and the like.
NO_LOGGERS = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"
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


def longest_trial_name() -> int:
    """How much Ray leaves of the name of a trial's directory, before the time that it adds."""
    return int(os.environ.get(LONGEST, LONGEST_COUNT))


def trials_work_elsewhere() -> bool:
    """Whether Ray leaves the working directory of this driver's trials as it is."""
    return os.environ.get(CHDIR) == "0"


def makes_loggers() -> bool:
    """Whether Ray writes the results of each trial to its files, though no user asks for it."""
    return os.environ.get(NO_LOGGERS) != "1"
