"""Files that a trial writes into its working directory, such as plots and logs, are kept too."""

from __future__ import annotations

from pathlib import Path

from ray import tune

from tune_sync import RunConfig, SyncConfig


def train(config: dict[str, int]) -> None:
    for step in range(3):
        Path(f"plot_{step}.txt").write_text("*" * config["width"] * step)
        Path("scratch.bak").write_text("not worth keeping")
        tune.report({"step": step})


def main() -> None:
    sync = SyncConfig(sync_artifacts=True, exclude=["*.bak"])
    tuner = tune.Tuner(
        train,
        param_space={"width": tune.grid_search([1, 2])},
        run_config=RunConfig(name="artifacts", sync_config=sync, overwrite=True, verbose=0),
    )
    for result in tuner.fit():
        names = sorted(p.name for p in Path(result.path).iterdir())
        print(result.config, [name for name in names if name.startswith(("plot", "scratch"))])


if __name__ == "__main__":
    main()
