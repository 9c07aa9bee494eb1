"""A `Syncer` that was written for Ray 2.0 to 2.6, on the Ray of today.

The class is that of Ray's own manual of those days, with two lines changed: its import, and that a
command that fails is raised instead of printed, so that it is tried again, and told by `fit()`.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ray import tune

from tune_sync import RunConfig, SyncConfig, Syncer  # was: from ray.tune.syncer import Syncer


class CustomCommandSyncer(Syncer):
    """Runs commands of the shell."""

    def __init__(
        self,
        sync_up_template: str,
        sync_down_template: str,
        delete_template: str,
        sync_period: float = 300.0,
    ) -> None:
        self.sync_up_template = sync_up_template
        self.sync_down_template = sync_down_template
        self.delete_template = delete_template
        super().__init__(sync_period=sync_period)

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        return self.call(self.sync_up_template.format(source=local_dir, target=remote_dir))

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        return self.call(self.sync_down_template.format(source=remote_dir, target=local_dir))

    def delete(self, remote_dir: str) -> bool:
        return self.call(self.delete_template.format(target=remote_dir))

    def call(self, command: str) -> bool:
        subprocess.run(command, shell=True, check=True)  # was: except: print(...); return False
        return True


def train(config: dict[str, Any]) -> None:
    for step in range(3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"step": step}, checkpoint=checkpoint)  # was: session.report


def main() -> None:
    place = Path(tempfile.mkdtemp(prefix="port_ray_syncer-"))
    copy = "mkdir -p '{target}' && cp -R '{source}/.' '{target}'"
    syncer = CustomCommandSyncer(copy, copy, "rm -r '{target}'")
    config = RunConfig(
        name="ported",
        storage_path=place / "home",  # was: local_dir
        sync_config=SyncConfig(upload_dir=place / "far", syncer=syncer),
        verbose=0,
    )
    tune.Tuner(train, run_config=config).fit()
    there = sorted(path.name for path in (place / "far").glob("ported/*/checkpoint_*"))
    print(there)
    assert there == ["checkpoint_000000", "checkpoint_000001", "checkpoint_000002"]


if __name__ == "__main__":
    main()
