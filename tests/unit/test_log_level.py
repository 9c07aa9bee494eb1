"""`TUNE_SYNC_LOG_LEVEL`: what processes log that use tune_sync."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import logging
logging.basicConfig()
import tune_sync
for name in ("ray.tune_sync", "tune_sync.fastpath.slots", "other"):
    logging.getLogger(name).debug("of a debugger")
    logging.getLogger(name).warning("of anyone")
"""


def said(level: str) -> str:
    env = {**os.environ, "TUNE_SYNC_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False
    )
    return done.stderr


@pytest.mark.parametrize(
    ("level", "debug_count", "warning_count"), [("", 0, 3), ("debug", 2, 3), ("ERROR", 0, 1)]
)
def test_it_is_that_of_all_our_loggers_and_no_others(
    level: str, debug_count: int, warning_count: int
) -> None:
    found = said(level)
    assert (found.count("debugger"), found.count("anyone")) == (debug_count, warning_count), found


def test_one_that_is_none_is_refused() -> None:
    assert "ConfigError: TUNE_SYNC_LOG_LEVEL='loud': give one of DEBUG, INFO" in said("loud")
