"""A user's own callbacks are told of what is stored, and what they raise costs no checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ray import tune

from tune_sync import RunConfig

STEPS = 3


def reports(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        with tempfile.TemporaryDirectory() as made:
            Path(made, "step").write_text(str(step))
            checkpoint = tune.Checkpoint.from_directory(made)
            tune.report({"step": step}, checkpoint=checkpoint)


class Copies(tune.Callback):  # type: ignore[misc]
    """Opens each checkpoint that it is told of; raises at the second."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        with checkpoint.as_directory() as directory:
            self.read.append(Path(directory, "step").read_text())
        if len(self.read) == 2:
            raise RuntimeError("the tracking server does not answer")


def test_each_checkpoint_can_be_opened_and_is_stored_also_where_the_callback_raises(
    local_ray: None, tmp_path: Path
) -> None:
    copies = Copies()
    run_config = RunConfig(name="x", storage_path=tmp_path, verbose=0, callbacks=[copies])
    (result,) = tune.Tuner(reports, run_config=run_config).fit()
    assert copies.read == ["0", "1", "2"]
    stored = sorted(path.name for path in Path(result.path).glob("checkpoint_*"))
    assert stored == [f"checkpoint_{step:06d}" for step in range(STEPS)]
    assert Path(result.checkpoint.path).name == "checkpoint_000002"
