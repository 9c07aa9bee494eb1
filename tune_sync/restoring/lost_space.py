"""Refuses a restore in which Ray would begin a search afresh, and without its search space.

Ray keeps the `param_space` of a search in the state that it saves, and not in `tuner.pkl`. Where a
driver ended before its first state, Ray only logs that there is none, and begins with `{}`.
"""

from __future__ import annotations

import sys
from types import FrameType

from tune_sync.errors import ConfigError
from tune_sync.homes.saved_state import STATES
from tune_sync.layout import is_state
from tune_sync.run import Run

# Of Ray's method that restores a Tuner: the keys of the space that it was made with, or None, and
# the space that is given to the restore.
_KEYS, _GIVEN = "flattened_param_space_keys", "overwrite_param_space"


def is_space_left_out() -> bool:
    """Whether this is called as Ray restores a Tuner that had a search space, without giving it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not {_KEYS, _GIVEN} <= {*frame.f_code.co_varnames}:
        frame = frame.f_back
    found = frame.f_locals if frame is not None else {}
    return bool(found.get(_KEYS)) and found.get(_GIVEN) is None


def check_saved(run: Run) -> None:
    """Raise ConfigError where there is no state, for a Tuner whose space nobody gives."""
    if run.saved_trials or any(is_state(entry.key) for entry in run.home.list("", False)):
        return
    raise ConfigError(
        f"{run.where} has no {STATES}: its run ended before Ray had saved one. There is nothing to "
        "resume, and Ray would begin without its param_space; make the Tuner anew, by the same "
        "name, give param_space to the restore, or use restore_or_start"
    )
