"""Keeps up what the written state says of trials whose newest checkpoints have not travelled.

With `sync_on_checkpoint=False`: see `sending.periodic`. For the thread of Ray's control loop.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tune_sync.restoring import ray_records
from tune_sync.run import Run
from tune_sync.sending.periodic import Named, PeriodicBacklog


class WrittenRecords:
    """One run's."""

    def __init__(self) -> None:
        self._trials: dict[str, Any] = {}  # by directory
        self._results: dict[str, dict[str, Any]] = {}  # by directory, and key
        self._said: dict[str, tuple[list[str], str]] = {}

    def registering(self, run: Run, trial: Any, registered: Any) -> None:
        """Ray is about to register a checkpoint: older ones that did not travel never will."""
        checkpoint = ray_records.key_at(run, registered.path)
        with _periodic(run) as backlog:
            if backlog is None:
                return
            directory = ray_records.directory_of(trial)
            known = self._note(run, trial)
            if backlog.track(directory, (c for c in known if c != checkpoint)):
                self._trials[directory] = trial
            backlog.supersede(checkpoint)
            dropped = backlog.take_dropped()
        if dropped:
            ray_records.forget_some(trial, {f"{run.root}/{key}" for key in dropped})

    def ended(self, run: Run | None, trial: Any) -> None:
        """A trial has ended."""
        with _periodic(run) as backlog:
            if backlog is not None:
                backlog.end_trial(ray_records.directory_of(trial))

    def refresh(self, run: Run | None) -> None:
        """Have the state say what is at the destination by now."""
        with _periodic(run) as backlog:
            for directory in backlog.take_stale() if backlog is not None else ():
                if run is not None and backlog is not None and directory in self._trials:
                    self._say(run, backlog, directory)

    def _say(self, run: Run, backlog: PeriodicBacklog, directory: str) -> None:
        trial = self._trials[directory]
        now = ray_records.current(trial)
        self._note(run, trial)
        results = self._results[directory]
        known = [ray_records.key_of(run, r) for r in ray_records.listed(trial)]
        keys, latest = said = backlog.names(
            directory, known, ray_records.key_of(run, now) if now else "", results
        )
        if self._said.get(directory) != said:
            found = [results[key] for key in keys]
            record = ray_records.encoded(trial, found, results.get(latest))
            names = frozenset((*keys, latest) if latest else keys)
            backlog.name(directory, Named(trial.trial_id, record, names))
            self._said[directory] = said
        backlog.settle(directory)
        kept = {*keys, latest, *known, *backlog.on_their_way(directory)}
        self._results[directory] = {key: r for key, r in results.items() if key in kept}

    def _note(self, run: Run, trial: Any) -> dict[str, Any]:
        """Remember what Ray's record holds: Ray may delete it before something newer is there."""
        now = {ray_records.key_of(run, r): r for r in ray_records.results(trial)}
        self._results.setdefault(ray_records.directory_of(trial), {}).update(now)
        return now


def _periodic(run: Run | None) -> AbstractContextManager[PeriodicBacklog | None]:
    behind = run.behind if run is not None else None
    return behind.periodic() if behind is not None else nullcontext()
