"""Which trials Ray's saved experiment state names, to tell a restore from a fresh start.

When Ray cannot restore, it logs that and starts the experiment afresh. `saved_trials` reads the
state before Ray does, and `check_restored` compares: a run that was to be resumed and is not
stops before it writes anything.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.home import Home
from tune_sync.homes.store import Info

STATES = "experiment_state-*.json"


def is_state(name: str) -> bool:
    """Whether a file at the top of an experiment is a state."""
    return fnmatch.fnmatchcase(name, STATES)


def saved_trials(home: Home, where: str) -> frozenset[str]:
    """Ids of the trials in the newest state of an experiment; none if it never began.

    Args:
        home: Of the experiment.
        where: Names it in errors.

    Raises:
        DamagedError: The state cannot be read, or is missing where there are checkpoints.
        OSError: It could not be looked at.
    """
    top = home.list("", False) if home.info("") is not None else []
    states = sorted((e for e in top if is_state(e.key)), key=lambda e: e.key)
    if not states:
        if any(e.key.endswith(".json") for e in _manifests(home)):
            raise DamagedError(
                f"{where} holds checkpoints, but no {STATES} that names them; put that file back, "
                "or choose another name to start afresh"
            )
        return frozenset()
    newest = states[-1]
    try:
        data = home.read(newest.key, 0, newest.size_bytes)
        trials = json.loads(bytes(data))["trial_data"]
        return frozenset(str(json.loads(trial)["trial_id"]) for trial, *_ in trials)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        older = f", or remove it to go on from {states[-2].key}" if len(states) > 1 else ""
        raise DamagedError(
            f"{where}/{newest.key} is not readable ({error!r}); put a whole copy back{older}"
        ) from error


def _manifests(home: Home) -> list[Info]:
    found = home.info(layout.MANIFESTS_DIR)
    return home.list(layout.MANIFESTS_DIR, True) if found is not None else []


def check_restored(where: str, saved: frozenset[str], running: Iterable[str]) -> None:
    """Raise DamagedError if a resumed run does not have all saved trials."""
    if len(set(running)) < len(saved):  # not by id: a trial that is restarted gets a new one
        missing = sorted(saved - set(running))
        raise DamagedError(
            f"Ray did not restore trials {', '.join(missing)} of {where}, and was about to start "
            "afresh; nothing was changed. Its log says why: see 'Failed to restore the run state'"
        )
