"""Searches of which one checkpoint can never be published: state and deletes go on."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.stores.seaweed import S3Server, s3
from tests.stores.steps import first_step
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import NotStoredError

URL, STEPS, LOST = "s3://bucket/results", 10, "checkpoint_000002"


def train(config: dict[str, Any]) -> None:
    for step in range(first_step(), STEPS):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            Path(folder, "model").write_bytes(b"model")
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        time.sleep(0.7)  # a bucket gets one state a second


class Loses(tune.Callback):  # type: ignore[misc]
    """Removes an object of a checkpoint before it is published; keeps what states are there."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server, self.prefix = server, f"results/{name}/"
        self.lost = ""
        self.bodies: list[str] = []

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any
    ) -> None:
        if trial and trial.config["trial"] == 0 and result.get("checkpoint_dir_name") == LOST:
            self.lost = f"{trial.storage.trial_fs_path.removeprefix('bucket/')}/{LOST}"
            s3(self.server).delete_object(Bucket="bucket", Key=f"{self.lost}/model")
        keys = [key for key in self.keys() if "/experiment_state" in key]
        for key in keys:
            found = s3(self.server).get_object(Bucket="bucket", Key=key)
            self.bodies.append(found["Body"].read().decode())

    def keys(self) -> list[str]:
        found = s3(self.server).list_objects_v2(Bucket="bucket", Prefix=self.prefix)
        return [entry["Key"] for entry in found["Contents"]]

    def checkpoints(self) -> set[str]:
        inside = (key.removeprefix(self.prefix) for key in self.keys())
        return {k.rpartition("/")[0] for k in inside if re.match(r"train_[^/]*/checkpoint_", k)}

    def __reduce__(self) -> tuple[Any, ...]:
        return tune.Callback, ()  # into the saved settings


def names(body: str, path: str) -> bool:
    """Whether a state names a checkpoint, in Ray's encoding."""
    return path.encode().hex() in body


def search(server: S3Server, watch: Loses, name: str, num_to_keep: int | None) -> Any:
    config: Any = RunConfig(
        name=name, verbose=0, callbacks=[watch],
        checkpoint_config=tune.CheckpointConfig(num_to_keep=num_to_keep),
        sync_config=SyncConfig(upload_dir=URL, storage_options=server.options),
    )  # fmt: skip
    space = {"trial": tune.grid_search([0, 1])}
    return tune.Tuner(train, param_space=space, run_config=config).fit()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")


def test_state_and_deletes_go_on_and_fit_returns_once_ray_has_let_it_go(
    own_server: S3Server,
) -> None:
    watch = Loses(own_server, "let-go")
    results = search(own_server, watch, "let-go", 2)
    assert watch.lost and not results.errors
    assert not any(names(body, watch.lost) for body in watch.bodies)
    during = {path for body in watch.bodies for path in numbers_named(body)}
    assert max(during) >= 6, "state went on while the search did"
    assert {path[-6:] for path in watch.checkpoints()} == {"000008", "000009"}


def test_where_it_is_missed_fit_raises_and_names_it_and_the_last_state_is_there(
    own_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Loses(own_server, "missed")
    with pytest.raises(NotStoredError, match=f"{LOST}/model is missing"):
        search(own_server, watch, "missed", None)
    watch.on_trial_result(0, [], None, None)
    last = watch.bodies[-1]
    assert not any(names(body, watch.lost) for body in watch.bodies)
    assert [json.loads(trial)["status"] for trial, _ in json.loads(last)["trial_data"]] == [
        "TERMINATED", "TERMINATED",
    ]  # fmt: skip
    assert sorted(numbers_named(last)) == sorted([*range(STEPS), *({*range(STEPS)} - {2})])
    told = [r for r in caplog.records if LOST in r.getMessage() and r.name == "ray.tune_sync"]
    assert len(told) == 2, "why, and what state names instead"


def numbers_named(body: str) -> list[int]:
    """Numbers of the checkpoints that a state names."""
    pattern = b"/checkpoint_".hex() + "((?:3[0-9]){6})"
    return [int(bytes.fromhex(found)) for found in re.findall(pattern, body)]
