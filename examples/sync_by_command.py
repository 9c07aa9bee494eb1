"""Results go on to another place with commands; from there they come back, and the run goes on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ray import tune

from tune_sync import CommandSyncer, RunConfig, SyncConfig, fetch_experiment

# Each machine has these. In earnest: "aws s3 sync {source} {target}", "rclone copy …", "rsync …".
COPY = """sh -c 'mkdir -p "$2" && cp -R "$1/." "$2"' sh {source} {target}"""
SYNCER = CommandSyncer(upload=COPY, download=COPY, delete="rm -r {target}")


def train(config: dict[str, str]) -> None:
    checkpoint, step = tune.get_checkpoint(), 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            step = int(Path(folder, "step.txt").read_text())
    while step < 4:
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        if step == 2 and not checkpoint:
            raise RuntimeError("the machine broke")


def main() -> None:
    place = Path(tempfile.mkdtemp(prefix="sync_by_command-"))
    far = place / "far"
    sync = SyncConfig(upload_dir=far, syncer=SYNCER)
    config = RunConfig(name="exp", storage_path=place / "home", sync_config=sync, verbose=0)
    print("first run:", tune.Tuner(train, run_config=config).fit()[0].error)

    shutil.rmtree(place / "home")  # the driver's disk is lost
    path = fetch_experiment(far / "exp", place / "home/exp", SYNCER)
    (result,) = tune.Tuner.restore(str(path), trainable=train, resume_errored=True).fit()
    print("restored: step", result.metrics["step"])
    print(sorted(p.name for p in far.glob("exp/*/checkpoint_*")))


if __name__ == "__main__":
    main()
