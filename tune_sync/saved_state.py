"""Which trials Ray's saved experiment state names, to tell a restore from a fresh start.

When Ray cannot restore, it logs that and starts the experiment afresh. `saved_trials` reads the
state before Ray does, and `check_restored` compares: a run that was to be resumed and is not
stops before it writes anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import DamagedError

_STATES = "experiment_state-*.json"


def saved_trials(root: Path) -> frozenset[str]:
    """Ids of the trials in the newest state of an experiment; none if it never began.

    Raises:
        DamagedError: The state cannot be read, or is missing where there are checkpoints.
        OSError: It could not be looked at.
    """
    states = sorted(name for name in root.glob(_STATES))
    if not states:
        if any((root / layout.MANIFESTS_DIR).glob("**/*.json")):
            raise DamagedError(
                f"{root} holds checkpoints, but no {_STATES} that names them; put that file back, "
                "or choose another name to start afresh"
            )
        return frozenset()
    newest = states[-1]
    try:
        trials = json.loads(newest.read_bytes())["trial_data"]
        return frozenset(str(json.loads(trial)["trial_id"]) for trial, *_ in trials)
    except (ValueError, KeyError, TypeError) as error:
        older = f", or remove it to go on from {states[-2].name}" if len(states) > 1 else ""
        raise DamagedError(
            f"{newest} is not readable ({error!r}); put a whole copy back{older}"
        ) from error


def check_restored(root: Path, saved: frozenset[str], running: Iterable[str]) -> None:
    """Raise DamagedError if a resumed run does not have all saved trials."""
    if len(set(running)) < len(saved):  # not by id: a trial that is restarted gets a new one
        missing = sorted(saved - set(running))
        raise DamagedError(
            f"Ray did not restore trials {', '.join(missing)} of {root}, and was about to start "
            "afresh; nothing was changed. Its log says why: see 'Failed to restore the run state'"
        )
