"""An agent whose results go to another node than that of a restore that asks for them."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.unit.staged import sealed
from tune_sync.agents.connect import RayConnector, node_id
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import agent_name
from tune_sync.agents.node_agent import start_node_agent
from tune_sync.agents.node_agents import finish_earlier
from tune_sync.behind.left_behind import find
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import LeaseHeldError
from tune_sync.homes.commit import Committer
from tune_sync.homes.lease import Lease
from tune_sync.homes.sites import LocalSite
from tune_sync.homes.store import LocalStore
from tune_sync.layout import LEASE_KEY
from tune_sync.spec import Address, Options, Spec

ELSEWHERE = "f" * 56  # a node that has a directory of the same path
OWNER = uuid.uuid4().hex


@pytest.fixture
def spec(local_ray: None, tmp_path: Path) -> Spec:
    """Of a run on this node's disk."""
    options = Options(staging_dir=str(tmp_path / "staging"))
    LocalSite(tmp_path / "results/exp").prepare()
    address = Address(node_id(), "")
    return Spec("key", str(tmp_path / "results"), "exp", OWNER, address, options)


def started(spec: Spec) -> tuple[Path, Any]:
    """The run's agent here, and its staging, with a checkpoint that was reported."""
    root = Path(spec.options.staging_dir, spec.owner, spec.home_node)
    root.mkdir(parents=True)
    sealed(Committer(LocalStore(root), ""), {"a": b"1"}, ranks_count=1)
    return root, start_node_agent(spec, spec.home_node, root, RayConnector())


def test_it_ends_and_leaves_all_to_the_restore_once_its_own_driver_is_dead(spec: Spec) -> None:
    lease = Lease(Path(spec.where), spec.owner)
    lease.acquire()
    lease.leave()  # as a driver that has been silent for long
    root, agent = started(spec)
    until_s = time.monotonic() + 150.0
    while not ray.get(agent.known_runs.remote())[0].news.stored_count:
        assert time.monotonic() < until_s, "it has not sent it to its own home"
        time.sleep(0.1)
    finish_earlier(spec.where, 150.0, None, ELSEWHERE)
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor(agent_name(spec, spec.home_node), namespace=NAMESPACE)
    assert len(list(StagedCopies(root).attempts())) == 1
    (left,) = find(Path(spec.options.staging_dir))
    with left.taken() as is_free:
        assert is_free


def test_that_of_a_live_run_goes_on_as_before(spec: Spec) -> None:
    lease = Lease(Path(spec.where), spec.owner)
    lease.acquire()
    _, agent = started(spec)
    with pytest.raises(LeaseHeldError, match="in use by a live run"):
        ray.get(agent.finish.remote(None, ELSEWHERE), timeout=150)
    finish_earlier(spec.where, 150.0, None, ELSEWHERE)
    assert ray.get(agent.ping.remote(), timeout=150)
    held = json.loads((Path(spec.where) / LEASE_KEY).read_text())
    assert held["owner"] == spec.owner
    lease.release()
    ray.kill(agent)
