"""A Tune callback that prints one plain line for everything that happens, and keeps a record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from examples.demo_parts.names import LOST


class Progress(tune.Callback):
    """Prints progress.

    Attributes:
        stored: `<trial directory>/<checkpoint>` of every checkpoint that Tune registered.
        resumes: Each trial that went on after it was lost: the checkpoint that it opened, and the
            one that was its last.
    """

    def __init__(self, number: Callable[[Any], int]) -> None:
        self._number = number
        self._result: dict[int, dict[str, Any]] = {}
        self._last: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self.stored: list[str] = []
        self.resumes: list[dict[str, Any]] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = self._number(trial)
        if number not in self._lost:
            settings = ", ".join(f"{name} {value:.3g}" for name, value in trial.config.items())
            say(f"trial {number} starts: {settings}")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        number = self._number(trial)
        self._result[number] = result
        if number in self._lost:
            self._resumed(number, result)

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        number, path = self._number(trial), Path(checkpoint.path)
        self._last[number] = path.name
        self.stored.append(f"{path.parent.name}/{path.name}")
        result = self._result[number]
        say(
            f"trial {number} on {result['host']}: epoch {result['epoch']:2}, "
            f"accuracy {result['accuracy']:.3f}, {path.name}"
        )

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = self._number(trial)
        self._lost[number] = self._last.get(number, "")
        say(f"trial {number} {LOST}, and queues; last checkpoint: {self._lost[number] or 'none'}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        last = trial.last_result
        say(
            f"trial {self._number(trial)} ends after {last['epoch']} epochs: {last['accuracy']:.3f}"
        )

    def _resumed(self, number: int, result: dict[str, Any]) -> None:
        source, last = result["resumed_from"], self._lost.pop(number)
        self.resumes.append({"trial": number, "from": source, "last": last})
        begin = f"from {source}" if source else "from scratch: it had no checkpoint"
        say(f"trial {number} resumes on {result['host']} at epoch {result['epoch']} {begin}")


def say(text: str) -> None:
    """Print a line of the demo's own; `sys.stdout` may lead elsewhere."""
    print(text, file=sys.__stdout__, flush=True)
