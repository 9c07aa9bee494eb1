"""A restored run of an experiment directory, and trials as a saved state tells of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Trial

from tests.unit.staged import sealed
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.home import LocalHome
from tune_sync.homes.saved_state import TrialNames
from tune_sync.layout import checkpoint_name
from tune_sync.report import Report
from tune_sync.restoring import ray_records
from tune_sync.restoring.clones import Clones
from tune_sync.restoring.restored import adopt_published
from tune_sync.run import Run
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec

MINE, OTHER = "train_1_0_2026", "train_2_9_2026"


class Here:
    """Every process is on the home node."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def home(self, spec: Spec) -> LocalHome:
        return LocalHome(Path(spec.root, spec.experiment))

    def tell_unstored(self, spec: Spec, key: str, reason: str | None) -> None:
        pass

    def reported(self, spec: Spec, report: Report) -> None:
        pass

    def unstored(self, spec: Spec, *, is_last: bool = True) -> dict[str, str]:
        return self.told

    def take_turn(self, spec: Spec) -> None:
        """Nobody else starts."""

    def finish_earlier(self, spec: Spec) -> None:
        pass

    def check_here(self, spec: Spec) -> None:
        pass

    def rank(self) -> int:
        return 0

    def where(self) -> str:
        return "here"

    def ranks_count(self) -> int:
        return 1

    def is_worker(self) -> bool:
        return False


class Storage(StorageContext):  # type: ignore[misc]
    """Of which no process of Ray's has to know: its loggers have written nothing here."""

    @property
    def trial_driver_staging_path(self) -> str:
        return "/nowhere"


class Experiment:
    """A restored run of an experiment directory, and trials as a saved state tells of them."""

    def __init__(self, storage: Path, on_existing: str = "error") -> None:
        spec = Spec(f"test {storage}", str(storage), "x", "", None, Options())
        handler = SyncHandler(spec, Here())
        handler.on_existing = on_existing
        self.run: Run = handler.start()
        self.root = storage / "x"
        self.clones = Clones()
        self.filesystem = RunFileSystem(handler)

    def publish(self, directory: str, *numbers: int, metrics: dict[str, Any] | None = None) -> None:
        """Publish checkpoints of one file; their metrics say which they are."""
        committer = self.run.home.committer
        for number in numbers:
            key = f"{directory}/{checkpoint_name(number)}"
            sealed(committer, {"model": b"bytes"}, key)
            told = {"training_iteration": number + 1, "from": "manifest"}
            committer.record(committer.place(key, metrics=metrics or told).manifest)

    def trial(
        self, directory: str = MINE, saved: Sequence[int] = (), *, trial_id: str = "1",
        num_to_keep: int | None = None, status: str = Trial.PAUSED, **names: Any,
    ) -> Trial:  # fmt: skip
        """A trial whose saved state names checkpoints of its directory."""
        storage = Storage(
            str(self.root.parent), "x",
            storage_filesystem=self.filesystem, trial_dir_name=directory or None,
        )  # fmt: skip
        config = CheckpointConfig(num_to_keep=num_to_keep)
        trial = Trial(
            "train",
            stub=True,
            trial_id=trial_id,
            storage=storage,
            checkpoint_config=config,
            **names,
        )
        trial.relative_logdir = directory or None
        self.run.saved_trials |= {TrialNames(trial_id, directory)}
        trial.status = status
        trial.run_metadata.last_result = {"from": "last result"}
        for number in saved:
            ray_records.register(trial, self.result(directory, number))
            self.log(directory, number + 1)
        return trial

    def log(self, directory: str, iteration: int) -> None:
        """What Ray's logger wrote of a trial ends with this row."""
        (self.root / directory).mkdir(exist_ok=True)
        line = json.dumps({"training_iteration": iteration})
        (self.root / directory / "result.json").write_text(line + "\n")

    def logged(self, directory: str) -> list[int]:
        """What iterations its rows are of."""
        lines = (self.root / directory / "result.json").read_text().splitlines()
        return [json.loads(line)["training_iteration"] for line in lines]

    def result(self, directory: str, number: int, filesystem: Any = None) -> _TrainingResult:
        path = f"{self.root}/{directory}/{checkpoint_name(number)}"
        metrics = {"training_iteration": number + 1, "from": "state"}
        return _TrainingResult(Checkpoint(path, filesystem or self.filesystem), metrics)

    def adopt(self, *trials: Trial) -> None:
        self.clones.begin(self.run, trials)
        adopt_published(self.run, trials, self.filesystem)

    def doomed(self) -> set[str]:
        """What is to be deleted, as `trial/number`."""
        found = list(self.run.publisher._doomed)
        return {f"{key.split('/')[0]}/{int(key[-6:])}" for key in found}

    def lose_file(self, directory: str, number: int) -> None:
        (self.root / directory / checkpoint_name(number) / "model").unlink()

    def shorten_file(self, directory: str, number: int) -> None:
        (self.root / directory / checkpoint_name(number) / "model").write_bytes(b"byte")

    def remove(self, directory: str, *numbers: int) -> None:
        for number in numbers:
            shutil.rmtree(self.root / directory / checkpoint_name(number))
