"""Trainables that fail once, after three checkpoints, so that there is something to restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import tune

from tests.hosts.drivers.trainables import TrainN, train_n

FAILS_AT = 3
STEPS = 6


def stumbles(config: dict[str, Any]) -> None:
    """`train_n`, with an end after three steps the first time."""
    if tune.get_checkpoint() is None:
        train_n({"settings": {"steps": FAILS_AT}})
        raise RuntimeError("stumbled")
    train_n({"settings": {"steps": STEPS}})


class Stumbles(TrainN):
    """`TrainN`, with an error in its fourth step the first time; `config["mark"]` remembers."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup({**config, "settings": {"steps": STEPS}})

    def step(self) -> dict[str, Any]:
        mark = Path(self.config["mark"])
        if self.step_done + 1 == FAILS_AT and not mark.exists():
            mark.touch()
            raise RuntimeError("stumbled")
        return super().step()
