"""Which trials Ray's saved experiment state names, to tell a restore from a fresh start.

When Ray cannot restore, it logs that and starts the experiment afresh. `saved_trials` reads the
state before Ray does, and `check_restored` compares: a run that was to be resumed and is not
stops before a trial begins. What crashes left in staging has been published or dropped by then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tune_sync.environment import longest_trial_name
from tune_sync.errors import DamagedError
from tune_sync.homes.sites import DriverHome
from tune_sync.layout import is_state

STATES = "experiment_state-*.json"
# What Ray puts "_" for in the name of a trial's directory; older versions did so for the first
# three alone.
_REPLACED = str.maketrans(dict.fromkeys('/()<>:"\\|?*', "_"))


@dataclass(frozen=True, slots=True)
class TrialNames:
    """What tells which directory is a trial's.

    Attributes:
        trial_id: Ray's; it is a part of the names that Ray gives.
        directory: What the state says; "" if it was saved before the trial had one.
        custom: The name that the user's `trial_dirname_creator` gave, or "".
        beginning: See `beginning_of`.
    """

    trial_id: str
    directory: str = ""
    custom: str = ""
    beginning: str = ""

    @classmethod
    def of(cls, state: dict[str, Any]) -> TrialNames:
        """Of a trial in a state of Ray's. Raises KeyError where that has no id."""
        name, tag = state.get("custom_trial_name"), state.get("experiment_tag")
        return cls(
            str(state["trial_id"]), str(state.get("relative_logdir") or ""),
            str(state.get("custom_dirname") or ""), beginning_of(str(name or ""), str(tag or "")),
        )  # fmt: skip

    def has(self, directory: str) -> bool:
        """Whether a directory is that of this trial."""
        made = directory.translate(_REPLACED)
        if directory and (directory == self.directory or made == self.custom.translate(_REPLACED)):
            return True
        is_named = bool(self.beginning) and made.startswith(self.beginning.translate(_REPLACED))
        return not self.custom and (is_named or self.is_in(directory))

    def is_in(self, directory: str) -> bool:
        """Whether a directory has the trial's id in its name."""
        return f"_{self.trial_id}_" in f"_{directory}_"


def beginning_of(name: str, tag: str) -> str:
    """How Ray begins the name of a trial's directory; the time follows.

    Args:
        name: What the user's `trial_name_creator` gave, or "".
        tag: Ray's of the trial: its number, and what it varies.

    Returns:
        "" without a name, or where Ray cuts it so short that another trial's may begin so too.
    """
    number, longest_count = tag.partition("_")[0], longest_trial_name()
    is_told = bool(name) and len(f"{name}_{number}_") <= longest_count
    return f"{name}_{tag}"[:longest_count] + "_" if is_told else ""


def saved_trials(home: DriverHome, where: str) -> frozenset[TrialNames]:
    """The trials in the newest state of an experiment; none if it never began.

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
        if any(home.published_keys()):
            raise DamagedError(
                f"{where} holds checkpoints, but no {STATES} that names them; put that file back, "
                "or choose another name to start afresh"
            )
        return frozenset()
    newest = states[-1]
    data = home.read(newest.key, 0, newest.size_bytes)
    try:
        trials = json.loads(bytes(data))["trial_data"]
        return frozenset(TrialNames.of(json.loads(trial)) for trial, *_ in trials)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        older = f", or remove it to go on from {states[-2].key}" if len(states) > 1 else ""
        raise DamagedError(
            f"{where}/{newest.key} is not readable ({error!r}); put a whole copy back{older}"
        ) from error


def check_restored(where: str, saved: Collection[TrialNames], running: Iterable[str]) -> None:
    """Raise DamagedError if a resumed run does not have all saved trials."""
    if len(set(running)) < len(saved):  # not by id: a trial that is restarted gets a new one
        missing = sorted({names.trial_id for names in saved} - set(running))
        raise DamagedError(
            f"Ray did not restore trials {', '.join(missing)} of {where}, and was about to start "
            "afresh; no trial was begun, and what is published is there. Its log says why: see "
            "'Failed to restore the run state'. "
            "With tune.run, on_existing='resume' needs resume=True beside it"
        )
