"""After a restore from a bucket the settings of the first run still count."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ray import tune

from tests.stores.seaweed import S3Server, s3
from tests.stores.steps import first_step
from tune_sync import RunConfig, SyncConfig, fetch, restore_kwargs

URL = "s3://bucket/settings"
FAILS_AT, STEPS = 2, 4


def keys(server: S3Server, name: str) -> set[str]:
    """All objects of a trial's directory, by their names there."""
    found = s3(server).list_objects_v2(Bucket="bucket", Prefix=f"settings/{name}/")["Contents"]
    below = (entry["Key"].split("/", 2)[2] for entry in found)
    return {key.partition("/")[2] for key in below if not key.startswith(".tune_sync/")}


def writes_all_kinds(config: dict[str, Any]) -> None:
    """Artifacts and files of checkpoints, both with some that are excluded; fails once."""
    first = first_step()
    for step in range(first, STEPS):
        if step == FAILS_AT != first:
            raise RuntimeError("stumbled")
        for ending in ("txt", "tmp"):
            Path(f"artifact_{step}.{ending}").write_text(str(step))
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            Path(folder, "large.tmp").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


def test_what_is_excluded_and_that_artifacts_are_stored_outlives_a_restore(
    own_server: S3Server, tmp_path: Path
) -> None:
    sync = SyncConfig(
        upload_dir=URL, storage_options=own_server.options,
        sync_artifacts=True, exclude=("*.tmp",),
    )  # fmt: skip
    config = RunConfig(name="kept", verbose=0, sync_config=sync)
    assert len(tune.Tuner(writes_all_kinds, run_config=config).fit().errors) == 1
    given = restore_kwargs(f"{URL}/kept", own_server.options)
    (result,) = tune.Tuner.restore(
        trainable=writes_all_kinds, resume_errored=True, **given
    ).fit()  # fmt: skip
    assert result.error is None
    stored = keys(own_server, "kept")
    assert {f"artifact_{step}.txt" for step in range(STEPS)} <= stored
    assert {f"checkpoint_{step:06}/step" for step in range(STEPS)} <= stored
    assert not [key for key in stored if key.endswith(".tmp")]
    copy = fetch(result.checkpoint, tmp_path / "copy")
    assert [path.name for path in copy.iterdir()] == ["step"]
    assert (copy / "step").read_text() == str(STEPS - 1)
