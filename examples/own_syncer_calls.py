"""`ObjectStoreSyncer` by hand: a trial sends a directory of its own choice, when it likes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ray import tune

from tune_sync import ObjectStoreSyncer, RunConfig, SyncConfig


def train(config: dict[str, int]) -> None:
    context = tune.get_context()
    syncer = ObjectStoreSyncer(context.get_storage().storage_filesystem)
    with tempfile.TemporaryDirectory() as folder:
        for page in range(config["pages"]):
            Path(folder, f"page_{page}.txt").write_text(f"page {page}")
        syncer.sync_up(folder, f"{context.get_storage().trial_fs_path}/notes")
        syncer.wait()  # raises what went wrong
    tune.report({"pages": config["pages"]})


def main() -> None:
    tuner = tune.Tuner(
        train,
        param_space={"pages": tune.grid_search([1, 3])},
        run_config=RunConfig(
            name="own_syncer_calls", sync_config=SyncConfig(), overwrite=True, verbose=0
        ),
    )
    for result in tuner.fit():
        print(sorted(p.name for p in Path(result.path, "notes").iterdir()))


if __name__ == "__main__":
    main()
