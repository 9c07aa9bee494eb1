"""A library of the store that crashes takes the node's agent with it, not the trial."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, Handler, proxy
from tests.stores.seaweed import S3Server
from tests.stores.test_behind import Fit
from tune_sync import RunConfig, SyncConfig

URL = "s3://bucket/results"
STEPS = 10
CRASHES_COUNT = 2
TIMEOUT_S = 60.0


def agent_pid() -> int:
    """The process of the one node agent of this Ray."""
    found = ray.util.list_named_actors(all_namespaces=True)
    (agent,) = [actor for actor in found if actor["name"].startswith("stage-")]
    handle = ray.get_actor(agent["name"], namespace=agent["namespace"])
    return int(ray.get(handle.ping.remote(), timeout=TIMEOUT_S))


class Holding(Handler):
    """Holds what puts a large file of a checkpoint, until it may go on."""

    is_held: threading.Event
    may_go: threading.Event

    def pass_on(self, body: bytes, fault: str) -> None:
        if self.command == "PUT" and "blob.bin" in self.path and not self.may_go.is_set():
            self.is_held.set()
            self.may_go.wait(TIMEOUT_S)
        super().pass_on(body, fault)


def crash_in_the_middle(is_held: threading.Event, may_go: threading.Event) -> int:
    """Wait until the agent is putting a file, and end it as a segmentation fault does."""
    is_held.clear()
    may_go.clear()
    assert is_held.wait(TIMEOUT_S)
    pid = agent_pid()
    os.kill(pid, signal.SIGSEGV)
    may_go.set()
    return pid


def test_a_crash_of_the_client_costs_no_checkpoint_and_no_trial(
    own_server: S3Server, tmp_path: Path
) -> None:
    is_held, may_go = threading.Event(), threading.Event()
    held = {"is_held": is_held, "may_go": may_go}
    crashed = set()
    with proxy(own_server.endpoint_url, Faults(), Holding, **held) as url:
        sync = SyncConfig(
            upload_dir=URL, storage_options={**own_server.options, "endpoint_url": url},
            wait_for="staged", staging_dir=tmp_path / "staging",
        )  # fmt: skip
        config = RunConfig(name="crash", verbose=0, sync_config=sync)
        space = {"settings": {"steps": STEPS, "pause_s": 1.0}}
        fit = Fit(tune.Tuner(train_n, param_space=space, run_config=config))
        for _ in range(CRASHES_COUNT):
            crashed.add(crash_in_the_middle(is_held, may_go))
        (result,) = fit.end()
        assert result.error is None
        assert len(crashed) == CRASHES_COUNT
        assert result.metrics["resumed_at"] == 0  # the trial has not even noticed
        assert len(result.best_checkpoints) == STEPS
        for checkpoint, metrics in result.best_checkpoints:
            with checkpoint.as_directory() as local:
                assert whole_digest(local) == metrics["digest"]
