"""How a process finds the home of a run, with Ray. The only place that asks Ray where it is."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from tune_sync.agents.home_agent import ask_unstored, start_agent, tell_unstored
from tune_sync.agents.names import keeper_of
from tune_sync.agents.node_agent import RayStagingAgent
from tune_sync.agents.node_agents import finish_earlier
from tune_sync.agents.options_agent import ask_options, start_options
from tune_sync.agents.remote_home import RemoteHome
from tune_sync.behind.left_behind import staging_root
from tune_sync.behind.staging_home import StagingHome
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import HomeLostError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.shared.home import SharedHome
from tune_sync.spec import Address, Spec
from tune_sync.storage_options import keep, kept

# One agent serves all runs of a driver process: a hundred searches in a loop need one process.
_AGENTS: dict[str, str] = {}


class RayConnector:
    """See `spec.Connector`. Holds nothing, so that it pickles as its name."""

    def home(self, spec: Spec) -> Home:
        """See `Connector.home`."""
        home = self._destination(spec)
        # What is on a disk of this node already is not staged beside it.
        is_here = isinstance(home, LocalHome) and not spec.options.shared
        if spec.options.stages and spec.owner and self.is_worker() and not is_here:
            return self._staging(spec, home)
        return home

    def _staging(self, spec: Spec, destination: Home) -> StagingHome:
        node, options = node_id(), spec.options
        root = Path(staging_root(options.staging_dir), spec.owner, node)
        return StagingHome(
            destination, root, RayStagingAgent(spec, node, root, self), node,
            checkpoint_depth=options.checkpoint_depth, timeout_s=options.timeout_s,
            waits=options.wait_for == "stored",
        )  # fmt: skip

    def _destination(self, spec: Spec) -> Home:
        if spec.scheme:
            url = BucketUrl(spec.scheme, f"{spec.root}/{spec.experiment}")
            bucket = open_bucket(url, self.storage_options(spec))
            return BucketHome(bucket, spec.owner, spec.options.checkpoint_depth)
        root = Path(spec.root, spec.experiment)
        if spec.options.shared:
            where = self.where() if self.is_worker() else ""
            return SharedHome(root, spec.owner, spec.options.checkpoint_depth, where)
        local = LocalHome(root, spec.owner, spec.options.checkpoint_depth)
        address = spec.address
        if address is None or address.node_id == node_id():
            return local
        if not ray.is_initialized():
            return LocalHome(root, "", spec.options.checkpoint_depth)  # results read elsewhere
        try:
            # The run's agent ends with its driver, so only the run's own processes rely on it.
            return self._remote(spec, address) if self.is_worker() else self._reopen(spec, address)
        except HomeLostError:
            if root.is_dir() and not self.is_worker():
                return LocalHome(root, "", spec.options.checkpoint_depth)
            return self._reopen(spec, address)

    def storage_options(self, spec: Spec) -> dict[str, Any]:
        """See `Connector.storage_options`. A worker asks the driver's agent for them, once.

        After the driver's death, it asks whoever keeps them for the run's node agents.
        """
        found = kept(spec.key)
        if found is None and spec.address is not None and spec.address.agent_name:
            found = _ask_for_options(spec, spec.address.agent_name)
            keep(spec.key, found)
        return found or {}

    def finish_earlier(self, spec: Spec) -> None:
        """See `Connector.finish_earlier`."""
        if ray.is_initialized() and not ray.util.client.ray.is_connected():
            options = self.storage_options(spec) if spec.scheme else {}
            finish_earlier(spec.where, spec.options.timeout_s, options)

    def tell_unstored(self, spec: Spec, key: str, reason: str) -> None:
        """See `Connector.tell_unstored`. With a bucket there is nobody to tell: it is logged."""
        if spec.address is not None and not spec.scheme and ray.is_initialized():
            tell_unstored(spec.address.agent_name, f"{spec.root}/{spec.experiment}", key, reason)

    def unstored(self, spec: Spec) -> dict[str, tuple[float, str]]:
        """See `Connector.unstored`."""
        if spec.address is None or spec.scheme or not ray.is_initialized():
            return {}
        return ask_unstored(spec.address.agent_name, f"{spec.root}/{spec.experiment}")

    def rank(self) -> int:
        """See `Connector.rank`."""
        return _ask_train("get_world_rank", 0)

    def ranks_count(self) -> int:
        """See `Connector.ranks_count`."""
        return _ask_train("get_world_size", 1)

    def where(self) -> str:
        """See `Connector.where`."""
        if not ray.is_initialized():
            return "this machine"
        return f"node {node_id()} ({ray.util.get_node_ip_address()})"

    def check_here(self, spec: Spec) -> None:
        """See `Connector.check_here`. Only actors are trials; other tasks may read old results."""
        began = spec.options.shared and spec.owner and spec.address is not None
        if began and self.is_worker() and ray.get_runtime_context().get_actor_id() is not None:
            root = Path(spec.root, spec.experiment)
            SharedHome(root, where=self.where()).check_here()

    def is_worker(self) -> bool:
        """See `Connector.is_worker`."""
        return ray.is_initialized() and bool(
            ray.get_runtime_context().worker.mode == ray.WORKER_MODE
        )

    def _remote(self, spec: Spec, address: Address) -> RemoteHome:
        return RemoteHome(
            address.agent_name, f"{spec.root}/{spec.experiment}", spec.owner,
            spec.options.checkpoint_depth, spec.options.timeout_s,
        )  # fmt: skip

    def _reopen(self, spec: Spec, address: Address) -> RemoteHome:
        """For readers: an agent of their own on the home node, if that is alive."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if address.node_id not in alive:
            raise HomeLostError(
                f"the node that kept {spec.root}/{spec.experiment} is not in this cluster; copy "
                "the directory here and restore from the copy"
            )
        return self._remote(spec, start_home(address.node_id))


def _ask_for_options(spec: Spec, agent_name: str) -> dict[str, Any] | None:
    if not ray.is_initialized():
        return None
    return ask_options(agent_name) or ask_options(keeper_of(spec))


def _ask_train(question: str, outside: int) -> int:
    with warnings.catch_warnings():  # older Rays warn of asking this inside a Tune trial
        warnings.simplefilter("ignore")
        try:
            return int(getattr(ray.train.get_context(), question)() or outside)
        except Exception:  # outside Ray Train each version raises something of its own
            return outside


def node_id() -> str:
    """This process's Ray node; "" without Ray, and for a Ray Client, which is on no node."""
    if not ray.is_initialized() or ray.util.client.ray.is_connected():
        return ""
    return str(ray.get_runtime_context().get_node_id())


def start_bucket(options: Mapping[str, Any] | None) -> Address:
    """What workers need to reach a bucket: an agent that knows the options, if there are any."""
    if not options:
        return Address("", "")
    name = f"options-{uuid.uuid4().hex}"
    start_options(name, options)
    return Address("", name)


def start_home(home_node_id: str) -> Address:
    """Start this process's home agent on a node, or find it running."""
    name = _AGENTS.setdefault(home_node_id, f"home-{uuid.uuid4().hex}")
    start_agent(name, home_node_id)
    return Address(home_node_id, name)
