"""Saves that Ray asked a trial for and then dropped, as Population Based Training makes it do.

In its synchronous mode a trial is paused while a save of it is under way, or it is told to go on
from another trial's checkpoint. Ray then forgets the save, which comes to its end all the same,
and may be cloned by another trial. Looked at once a step of Ray's control loop: only trials that
run cost anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray

from tune_sync.restoring import ray_records

_RUNNING = "RUNNING"


class DroppedSaves:
    """What Ray has forgotten of the saves of one run. For the thread of its control loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, tuple[Any, list[Any]]] = {}  # by trial id: of its present actor
        self._dropped: list[tuple[Any, Any]] = []
        self._kept: dict[str, list[Any]] = {}  # by trial id: published, Ray does not know yet

    def started(self, trial: Any) -> None:
        """A trial has a new actor: what an earlier one was asked for is dropped."""
        self.stopped(trial)
        self._under_way[trial.trial_id] = (trial, [])

    def processed(self, trial: Any) -> None:
        """Ray has processed a save of a trial: of several, not always the oldest first."""
        _, saves = self._under_way.get(trial.trial_id, (trial, []))
        if len(saves) > 1:
            known = ray_records.kept(trial)
            saves[:] = [save for save in saves if not _is_known(trial, save, known)]
        else:
            saves.clear()

    def stopped(self, trial: Any) -> None:
        """Ray has dropped the saves of a trial that are under way. Their numbers stay theirs."""
        _, saves = self._under_way.pop(trial.trial_id, (trial, []))
        self._dropped += [(trial, save) for save in saves]
        ray_records.reserve(trial, ray_records.index_of(trial) + len(saves))

    def failed(self, trial: Any) -> None:
        """A trial's actor is gone, and its saves with it."""
        self._under_way.pop(trial.trial_id, None)

    def look(self) -> None:
        """Note which saves are under way, and which of them Ray has dropped. Call it every step."""
        for trial, saves in list(self._under_way.values()):
            save = trial.temporary_state.saving_to
            if save is not None and save not in saves:
                saves.append(save)
            if trial.status != _RUNNING:
                self.stopped(trial)

    def waits_for(self, trial: Any) -> bool:
        """Whether a dropped save of the trial has not come to its end."""
        return any(other is trial for other, _ in self._dropped)

    def ended(self) -> Iterator[tuple[Any, Any]]:
        """Trials and results of dropped saves that have come to their end. Does not block."""
        for trial, save in list(self._dropped):
            if not _has_ended(save):
                continue
            self._dropped.remove((trial, save))
            result = _result(save)
            if result is not None and result.checkpoint:
                yield trial, result

    def keep(self, trial: Any, result: Any) -> None:
        """Remember that a dropped save was published."""
        self._kept.setdefault(trial.trial_id, []).append(result)

    def register(
        self, trial: Any, registering: Callable[[Any], None] = lambda checkpoint: None
    ) -> None:
        """Register with Ray what was kept of a trial; `registering` is told of each before.

        Call it where Ray is about to mark the trial for its saved state: registering may delete
        an older checkpoint, which the state then must not name any more.
        """
        for result in self._kept.pop(trial.trial_id, ()):
            registering(result.checkpoint)
            ray_records.register(trial, result)


def _has_ended(save: Any) -> bool:
    return bool(ray.wait([save.future], timeout=0)[0])


def _result(save: Any) -> Any:
    """What a save that has ended came to; None if its actor ended first: nobody has heard of it."""
    try:
        return ray.get(save.future)
    except ray.exceptions.RayError:
        return None


def _is_known(trial: Any, save: Any, known: Mapping[int, Any]) -> bool:
    result = _result(save) if _has_ended(save) else None
    return bool(
        result and result.checkpoint and ray_records.own_number(trial, result.checkpoint) in known
    )
