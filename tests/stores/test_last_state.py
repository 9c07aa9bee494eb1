"""A search whose control loop ends by an exception: the state in the bucket restores.

The last version of the state that Ray copied names a checkpoint that Ray has deleted since.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server, s3
from tests.stores.steps import first_step
from tests.stores.test_behind import wait_for
from tune_sync import RunConfig, SyncConfig, restore_kwargs

URL, NAME = "s3://bucket/results", "raises"
PREFIX = f"results/{NAME}/"
FIRST = "checkpoint_000000"
STEPS = 3
TIMEOUT_S, PAUSE_S = 60.0, 2.0


class StateWaits(Handler):
    """Does not take a state that names the first checkpoint, until it may pass."""

    may_pass: threading.Event
    put: list[str]
    held: Path

    def pass_on(self, body: bytes, fault: str) -> None:
        is_state = self.command == "PUT" and "/experiment_state" in self.path
        is_held = is_state and FIRST.encode() in body
        if is_held:
            self.held.touch()
            self.may_pass.wait(TIMEOUT_S)
        super().pass_on(body, fault)
        if is_held:
            self.put.append(body.decode(errors="replace"))


class Breaks(tune.Callback):  # type: ignore[misc]
    """From the second checkpoint on no state can be saved, and the loop ends."""

    def __init__(self, may_pass: threading.Event, put: list[str]) -> None:
        self.may_pass, self.put = may_pass, put
        self.is_broken = False

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        self.is_broken = not checkpoint.path.endswith(FIRST)

    def get_state(self) -> None:
        if self.is_broken:  # Ray has deleted the first one by now
            self.may_pass.set()
            end_s = time.monotonic() + TIMEOUT_S
            while not self.put and time.monotonic() < end_s:
                time.sleep(0.05)
            raise RuntimeError("cannot save")

    def __reduce__(self) -> tuple[Any, ...]:
        return tune.Callback, ()  # into the saved settings


def slowly(config: dict[str, Any]) -> None:
    """Report all steps that the checkpoint it goes on from does not have."""
    for step in range(first_step(), STEPS):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        if step == 0:
            wait_for(Path(config["held"]))  # a state that names it is on its way
            time.sleep(PAUSE_S)  # and Ray may save it, and copy it, again


def checkpoints(server: S3Server) -> set[str]:
    found = s3(server).list_objects_v2(Bucket="bucket", Prefix=PREFIX)
    keys = (entry["Key"] for entry in found.get("Contents", []))
    return {key.split("/")[-2] for key in keys if key.endswith("/step")}


def test_what_the_last_state_names_stays_and_a_restore_deletes_it(
    own_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    may_pass, put = threading.Event(), list[str]()
    given: dict[str, Any] = {"may_pass": may_pass, "put": put, "held": tmp_path / "held"}
    with proxy(own_server.endpoint_url, Faults(), StateWaits, **given) as url:
        options = {**own_server.options, "endpoint_url": url}
        config: Any = RunConfig(
            name=NAME, verbose=0, callbacks=[Breaks(may_pass, put)],
            sync_config=SyncConfig(upload_dir=URL, storage_options=options),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        )  # fmt: skip
        with pytest.raises(Exception, match="cannot save"):
            space = {"held": str(tmp_path / "held")}
            tune.Tuner(slowly, param_space=space, run_config=config).fit()
        named = set(re.findall(r"checkpoint_\d{6}", put[-1]))
        assert named == {FIRST}
        assert named <= checkpoints(own_server)
        place = restore_kwargs(f"{URL}/{NAME}", options)
        (result,) = tune.Tuner.restore(trainable=slowly, resume_errored=True, **place).fit()
        assert result.error is None and result.metrics["step"] == STEPS - 1
    assert checkpoints(own_server) == {f"checkpoint_{STEPS - 1:06}"}
