"""What a run leaves is what one of plain Ray leaves, but for what lies below `.tune_sync`."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray.tune
from ray import tune

import tune_sync
from tune_sync import layout

STEPS, KEPT_COUNT = 3, 2
# When it was, which trial, and which process of Ray's logger.
TIMES = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d|(?<=tfevents\.)\d+|(?<=saves_)[0-9a-f]{5}(?=_)")


def saves(config: dict[str, Any]) -> None:
    """Checkpoints with files, directories and an empty one; and artifacts, old and new."""
    for step in range(STEPS):
        Path("log.txt").write_text(f"{config} {step}")
        Path("plots/deep").mkdir(parents=True, exist_ok=True)
        Path(f"plots/deep/{step}").write_bytes(bytes([step]))
        with tempfile.TemporaryDirectory() as made:
            root = Path(made)
            (root / "model.bin").write_bytes(bytes([step, config["number"]]) * 1000)
            (root / "nothing").touch()
            (root / "part/of it").mkdir(parents=True)
            (root / "part/of it/shard").write_text(f"{config} {step}")
            (root / "empty").mkdir()
            checkpoint = tune.Checkpoint.from_directory(root)
            tune.report({"step": step, "score": config["rate"]}, checkpoint=checkpoint)


def tree(root: Path) -> dict[str, bytes | None]:
    """Path, with what differs between any two runs left out -> what a file of a trial's holds."""
    found = {}
    for path in root.rglob("*"):
        inside = path.relative_to(root)
        if inside.parts[0] == layout.INTERNAL_DIR:
            continue
        is_own = {"plots", "log.txt"}.intersection(inside.parts) or "/checkpoint_" in str(inside)
        data = path.read_bytes() if path.is_file() and is_own else None
        found[TIMES.sub("*", str(inside)) + "/" * path.is_dir()] = data
    return found


@pytest.mark.usefixtures("local_ray")
def test_files_have_the_names_and_bytes_that_plain_ray_gives_them(tmp_path: Path) -> None:
    left = {}
    for kind, sync in ((ray.tune, ray.tune.SyncConfig), (tune_sync, tune_sync.SyncConfig)):
        place = tmp_path / kind.__name__
        results = tune.Tuner(
            saves,
            param_space={"rate": tune.uniform(0, 1), "number": tune.grid_search([1, 2])},
            tune_config=tune.TuneConfig(
                search_alg=tune.search.BasicVariantGenerator(random_state=7)
            ),
            run_config=kind.RunConfig(
                name="exp", storage_path=str(place), verbose=0,
                sync_config=sync(sync_artifacts=True),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=KEPT_COUNT),
            ),
        ).fit()  # fmt: skip
        assert results.num_errors == 0
        left[kind.__name__] = tree(place / "exp")
    assert left["tune_sync"] == left["ray.tune"]
    names = "\n".join(left["tune_sync"])
    assert len(re.findall(r"checkpoint_\d{6}/$", names, re.MULTILINE)) == 2 * KEPT_COUNT
    for name in ("tuner.pkl", "experiment_state-*.json", "/log.txt", "/result.json", "/empty/"):
        assert name in names
