"""What trials could not store is known when `fit()` ends, or it says that it is not."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.hosts.searches import wait_for
from tests.local.test_home_agent import is_there
from tune_sync.agents import connect
from tune_sync.agents.connect import RayConnector, node_id, note_run, start_bucket, start_home
from tune_sync.agents.home_agent import NAMESPACE, begin_agent
from tune_sync.errors import HomeLostError
from tune_sync.spec import Options, Spec

KEY = "trial/note.txt"


def spec_at(root: Path | str, scheme: str = "") -> Spec:
    """A run of this process that has begun."""
    address = start_bucket({}) if scheme else start_home(node_id())
    spec = Spec(uuid.uuid4().hex, str(root), "x", "owner", address, Options(), scheme)
    agent = note_run(spec)
    wait_for(lambda: is_noted(agent, spec), "its note")
    return spec


def is_noted(agent: Any, spec: Spec) -> bool:
    return any(run.spec == spec for run in ray.get(agent.known_runs.remote()))


@pytest.mark.parametrize("scheme", ["", "s3"])
def test_it_is_known_with_whoever_writes_where(
    local_ray: None, tmp_path: Path, scheme: str
) -> None:
    spec = spec_at("bucket/results" if scheme else tmp_path, scheme)
    connector = RayConnector()
    assert connector.unstored(spec) == {}
    connector.tell_unstored(spec, KEY, "no room")
    inner = replace(spec, root=f"{spec.root}/x/trial", experiment="training")
    connector.tell_unstored(inner, "log.json", "no room either")
    connector.tell_unstored(replace(spec, experiment="xy"), KEY, "of another experiment")
    inside = {"trial/training/log.json": "no room either"}
    assert connector.unstored(spec) == {KEY: "no room", **inside}
    connector.tell_unstored(spec, KEY, None)
    assert connector.unstored(spec) == inside
    note_run(spec)  # the next one there, of the same driver
    wait_for(lambda: connector.unstored(spec) == {}, "what was told of the one before to go")


@ray.remote
def late(agent: Any, *told: Any) -> None:
    time.sleep(1)
    ray.get(agent.note_run.remote(*told))


class Late:
    """An agent whose notes come late, as of one that is just started."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.note_run = agent, self

    def remote(self, *told: Any) -> Any:
        return late.remote(self.agent, *told)


def test_a_run_that_ends_as_its_agent_starts_is_told_of_no_second_start(
    local_ray: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "ray.tune_sync")
    monkeypatch.setattr(connect, "begin_agent", lambda *where: Late(begin_agent(*where)))
    address = start_bucket({})
    spec = Spec(uuid.uuid4().hex, "bucket/results", "x", "me", address, Options(), "s3")
    note_run(spec)
    assert RayConnector().unstored(spec) == {}
    assert not caplog.messages


def test_an_agent_that_has_ended_is_no_proof_that_all_is_stored(
    local_ray: None, tmp_path: Path
) -> None:
    spec = spec_at(tmp_path)
    assert spec.address is not None
    name = spec.address.agent_name
    ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    wait_for(lambda: not is_there(name), "its end")
    RayConnector().tell_unstored(spec, KEY, "no room")  # a trial goes on
    with pytest.raises(HomeLostError, match=r"not known.*the logs of the trials"):
        RayConnector().unstored(spec)


def test_an_agent_that_was_started_again_has_forgotten_and_says_so(
    local_ray: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ray.tune_sync")
    spec, connector = spec_at(tmp_path), RayConnector()
    assert connector.unstored(spec) == {}
    assert not caplog.messages
    assert spec.address is not None
    agent = ray.get_actor(spec.address.agent_name, namespace=NAMESPACE)
    connector.tell_unstored(spec, KEY, "no room")
    ray.kill(agent, no_restart=False)
    wait_for(lambda: not connector.unstored(spec), "its new start")
    assert f"{tmp_path}/x: the home agent was started again" in caplog.text
