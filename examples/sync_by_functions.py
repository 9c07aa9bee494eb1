"""Results go on to another place with functions of your own, and with a `Syncer` of your own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ray import tune

from tune_sync import CallbackSyncer, RunConfig, SyncConfig, Syncer


def copy(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


class OwnSyncer(Syncer):
    """The least that a syncer has to have. These methods return when all is done."""

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        copy(local_dir, remote_dir)
        return True

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        copy(remote_dir, local_dir)
        return True

    def delete(self, remote_dir: str) -> bool:
        shutil.rmtree(remote_dir)
        return True


def train(config: dict[str, int]) -> None:
    for step in range(config["steps"]):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    place = Path(tempfile.mkdtemp(prefix="sync_by_functions-"))
    far = place / "far"
    functions = CallbackSyncer(upload=copy, download=copy, delete=shutil.rmtree)
    for name, syncer in (("functions", functions), ("subclass", OwnSyncer())):
        config = RunConfig(
            name=name,
            storage_path=place / "home",
            sync_config=SyncConfig(upload_dir=far, syncer=syncer),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
            verbose=0,
        )
        tune.Tuner(train, param_space={"steps": 3}, run_config=config).fit()
        print(name, sorted(p.name for p in far.glob(f"{name}/*/checkpoint_*")))


if __name__ == "__main__":
    main()
