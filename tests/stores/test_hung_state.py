"""State that cannot be put: first its puts hang, then three fail. Training does not wait for it.

Where few checkpoints are kept, Ray saves the state with each one, and waits for the save before.
"""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server, s3
from tests.stores.test_behind import Fit, wait_for
from tune_sync import RunConfig, SyncConfig, restore_kwargs

URL = "s3://bucket/results"
STEPS, FAILURES_COUNT = 50, 3
FILE_BYTES = 1024


class Hangs(Handler):
    """Puts of state hang until they may pass; then a few fail."""

    hangs: threading.Event
    may_pass: threading.Event
    failed: list[str]

    def pass_on(self, body: bytes, fault: str) -> None:
        if self.command == "PUT" and "state-" in self.path:
            self.hangs.set()
            self.may_pass.wait()
            if len(self.failed) < FAILURES_COUNT:
                self.failed.append(self.path)
                fault = "503"
        super().pass_on(body, fault)


def reports_all(config: dict[str, Any]) -> None:
    """The first report, then all others once it is told to; and a file when they have returned."""
    notes = Path(config["notes"])
    for step in range(STEPS):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step).rjust(FILE_BYTES))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        if step == 0:
            wait_for(notes / "go")
    (notes / "done").touch()


@pytest.mark.parametrize("keep", [None, 1])
def test_trials_go_on_while_no_state_can_be_put_and_the_last_one_is_there_at_the_end(
    own_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int | None
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    name, failed = f"hung{keep}", list[str]()
    hangs, may_pass = threading.Event(), threading.Event()
    given: Any = {"hangs": hangs, "may_pass": may_pass, "failed": failed}
    with proxy(own_server.endpoint_url, Faults(), Hangs, **given) as url:
        options = {**own_server.options, "endpoint_url": url}
        config: Any = RunConfig(
            name=name, verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=keep),
            sync_config=SyncConfig(upload_dir=URL, storage_options=options),
        )  # fmt: skip
        space = {"notes": str(tmp_path)}
        fit = Fit(tune.Tuner(reports_all, param_space=space, run_config=config))
        try:
            assert hangs.wait(150)
            (tmp_path / "go").touch()
            wait_for(tmp_path / "done")
        finally:
            may_pass.set()
        (result,) = fit.end()
    assert result.error is None
    assert len(failed) == FAILURES_COUNT
    kept = range(STEPS) if keep is None else [STEPS - 1]
    assert stored(own_server, name) == {f"checkpoint_{step:06d}" for step in kept}
    assert status_and_step(own_server, name) == ("TERMINATED", STEPS - 1)
    place = restore_kwargs(f"{URL}/{name}", own_server.options)
    (again,) = tune.Tuner.restore(trainable=reports_all, **place).get_results()
    assert again.checkpoint.path.endswith(f"checkpoint_{STEPS - 1:06d}")


def stored(server: S3Server, name: str) -> set[str]:
    found = s3(server).list_objects_v2(Bucket="bucket", Prefix=f"results/{name}/")
    keys = (entry["Key"] for entry in found["Contents"])
    return {key.split("/")[-2] for key in keys if key.endswith("/step")}


def status_and_step(server: S3Server, name: str) -> tuple[str, int]:
    """What the state that is there says of the one trial."""
    start = f"results/{name}/experiment_state"
    (found,) = s3(server).list_objects_v2(Bucket="bucket", Prefix=start)["Contents"]
    body = s3(server).get_object(Bucket="bucket", Key=found["Key"])["Body"].read()
    ((described, metadata),) = json.loads(body)["trial_data"]
    return json.loads(described)["status"], json.loads(metadata)["last_result"]["step"]
