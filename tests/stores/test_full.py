"""A bucket whose quota is used up while checkpoints are put into it, and raised again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.stores.proxy import ANSWERS, Faults, Handler, proxy
from tests.stores.seaweed import S3Server, s3
from tests.stores.steps import first_step
from tune_sync import RunConfig, SyncConfig, restore_kwargs
from tune_sync.errors import NotStoredError

URL = "s3://bucket/results"
STEPS, FULL_FROM = 4, 2
ANSWERS_IF_FULL = {
    "quota": (403, "QuotaExceeded", "The quota of this bucket is used up"),
    "no room": (507, "InsufficientStorage", "There is no room"),
}


class Full(Handler):
    """Takes no object of a checkpoint, as long as it is full."""

    full: list[str]

    def pass_on(self, body: bytes, fault: str) -> None:
        is_of_checkpoint = "/checkpoint_" in self.path and ".tune_sync" not in self.path
        if self.full and self.command == "PUT" and is_of_checkpoint:
            fault = self.full[-1]
        super().pass_on(body, fault)


class FillAndEmpty(tune.Callback):  # type: ignore[misc]
    """The bucket gets full after some steps, and empty again once a trial has said so."""

    def __init__(self, full: list[str], fault: str, server: S3Server, prefix: str) -> None:
        self.full, self.fault, self.server, self.prefix = full, fault, server, prefix
        self.said: list[str] = []
        self.before: dict[str, str] = {}
        self.after: dict[str, str] = {}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if result["said"]:
            self.full.clear()
            self.said.append(result["said"])
            self.after = etags(self.server, self.prefix)
        elif result["step"] == FULL_FROM - 1:
            self.before = etags(self.server, self.prefix)
            self.full.append(self.fault)


class FullOfAll(Handler):
    """Takes nothing, as long as it is full; deletes all the same."""

    full: list[str]

    def pass_on(self, body: bytes, fault: str) -> None:
        super().pass_on(body, self.full[-1] if self.full and self.command == "PUT" else fault)


class FillAtTheEnd(tune.Callback):  # type: ignore[misc]
    """The bucket gets full when Ray is about to register the last checkpoint of each trial."""

    def __init__(self, full: list[str]) -> None:
        self.full = full

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        if checkpoint.path.endswith(f"{STEPS - 1:06}"):
            self.full.append("quota")


def count_up(config: dict[str, Any]) -> None:
    """Report all steps that the checkpoint it goes on from does not have."""
    for step in range(first_step(), STEPS):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"step": step, "by": os.getpid()}, checkpoint=checkpoint)


def etags(server: S3Server, prefix: str) -> dict[str, str]:
    """Key -> e-tag of all objects in checkpoints."""
    found = s3(server).list_objects_v2(Bucket="bucket", Prefix=f"results/{prefix}")
    keys = {entry["Key"]: entry["ETag"] for entry in found.get("Contents", [])}
    return {key: etag for key, etag in keys.items() if "/checkpoint_" in key}


def fill(config: dict[str, Any]) -> None:
    """Report; what fails is reported again once the driver knows."""
    for step in range(STEPS):
        with tempfile.TemporaryDirectory() as folder:
            for name, size_bytes in config["files"].items():
                Path(folder, name).write_bytes(os.urandom(size_bytes))
            metrics = {"step": step, "digest": whole_digest(folder), "said": ""}
            try:
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
            except Exception as error:
                tune.report({**metrics, "said": f"{type(error).__name__}: {error}"})
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.mark.parametrize(
    ("fault", "files"),
    [("quota", {"large": 24 << 20, "small": 10}), ("no room", {"one": 10, "other": 5000})],
)
def test_a_full_bucket_fails_one_report_and_harms_nothing(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch, fault: str, files: dict[str, int]
) -> None:
    monkeypatch.setitem(ANSWERS, fault, ANSWERS_IF_FULL[fault])
    name, full = f"full-{fault}", list[str]()
    with proxy(own_server.endpoint_url, Faults(), Full, full=full) as url:
        callback = FillAndEmpty(full, fault, own_server, f"{name}/fill")
        options = {**own_server.options, "endpoint_url": url}
        sync = SyncConfig(upload_dir=URL, storage_options=options)
        config = RunConfig(name=name, verbose=0, sync_config=sync, callbacks=[callback])
        (result,) = tune.Tuner(fill, param_space={"files": files}, run_config=config).fit()
        assert result.error is None
        (said,) = callback.said
        assert (
            said.startswith("StoreFullError") and "make room" in said and ANSWERS[fault][1] in said
        )
        assert callback.before.items() <= callback.after.items()
        assert len(result.best_checkpoints) == STEPS
        for checkpoint, metrics in result.best_checkpoints:
            with checkpoint.as_directory() as local:
                assert whole_digest(local) == metrics["digest"]
    client = s3(own_server)
    assert not client.list_multipart_uploads(Bucket="bucket").get("Uploads")
    ours = client.list_objects_v2(Bucket="bucket", Prefix=f"results/{name}/.tune_sync/")
    found = {entry["Key"].split("/")[3] for entry in ours["Contents"]}
    assert found == {"format.json", "manifests", "tuner.pkl"}


def test_what_was_reported_stays_in_a_bucket_that_is_full_at_the_end_of_the_run(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "quota", ANSWERS_IF_FULL["quota"])
    name, full = "full-end", list[str]()
    with proxy(own_server.endpoint_url, Faults(), FullOfAll, full=full) as url:
        options = {**own_server.options, "endpoint_url": url}
        sync = SyncConfig(upload_dir=URL, storage_options=options)
        config = RunConfig(name=name, verbose=0, sync_config=sync, callbacks=[FillAtTheEnd(full)])
        with pytest.raises(NotStoredError, match=rf"checkpoint_{STEPS - 1:06}.*make room"):
            tune.Tuner(count_up, run_config=config).fit()
        assert full, "it was never full"
        last = [key for key in etags(own_server, name) if f"_{STEPS - 1:06}/step" in key]
        assert len(last) == 1, "deleted by the run that could not publish it"
        full.clear()
        given = restore_kwargs(f"{URL}/{name}", options)
        (result,) = tune.Tuner.restore(trainable=count_up, **given).fit()
        assert result.error is None
        assert [m["step"] for _, m in result.best_checkpoints] == list(range(STEPS))
        assert len({m["by"] for _, m in result.best_checkpoints}) == 1, "reported again"
    assert last == [key for key in etags(own_server, name) if f"_{STEPS - 1:06}/step" in key]
