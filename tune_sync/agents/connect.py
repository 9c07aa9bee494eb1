"""How a process finds the home of a run, with Ray."""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from tune_sync.agents.far_copies import RayFarCopies
from tune_sync.agents.home_agent import (
    HOME,
    NAMESPACE,
    START_TIMEOUT_S,
    TELL_TIMEOUT_S,
    ask_unstored,
    begin_agent,
    start_agent,
    tell_unstored,
)
from tune_sync.agents.known_runs import KnownRun, ask_agents
from tune_sync.agents.meters import count_report
from tune_sync.agents.names import connection, keeper_of
from tune_sync.agents.node_agent import staging_of
from tune_sync.agents.node_agents import finish_earlier
from tune_sync.agents.options_agent import ask_options, start_options
from tune_sync.agents.remote_home import RemoteHome
from tune_sync.agents.replicator import RayReplicator
from tune_sync.agents.shared_reads import RayBrought
from tune_sync.agents.staging_agent import RayStagingAgent
from tune_sync.behind.left_behind import mark_as
from tune_sync.behind.replicating import Replicating
from tune_sync.behind.settling import Settling
from tune_sync.behind.staging_home import StagingHome
from tune_sync.behind.staging_roots import memory_of
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import HomeLostError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.disk import make_directory
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.shared.home import SharedHome
from tune_sync.homes.shared.timed import TimedSharedHome
from tune_sync.report import Report
from tune_sync.spec import Address, Spec
from tune_sync.storage_options import keep, kept
from tune_sync.turns_to_start import take_turn

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# Whoever only wants to know how far a run is does not wait as long as a run.
READER_TIMEOUT_S = 20.0
# An agent that Ray has started again is told its options within seconds, if its driver lives.
TOLD_TIMEOUT_S = 60.0
# Runs of this process that an agent is being told of. A question comes to it on another way, and
# where it is just started, may come first.
_NOTED: dict[str, Any] = {}

# One agent serves all runs of a driver process: a hundred searches in a loop need one process. It
# ends with the connection to Ray. By that, and the node.
_AGENTS: dict[tuple[str, str], str] = {}


class RayConnector:
    """See `spec.Connector`. Holds nothing, so that it pickles as its name."""

    def home(self, spec: Spec) -> Home:
        """See `Connector.home`."""
        home, options = self._destination(spec), spec.options
        # What is on a disk of this node already is not staged on that beside it.
        is_here = isinstance(home, LocalHome) and not options.shared
        is_staged = bool(options.memory_dir) or not is_here
        if options.stages and spec.owner and self.is_worker() and is_staged:
            return self._staging(spec, home, is_here)
        return home

    def _staging(self, spec: Spec, destination: Home, is_here: bool) -> StagingHome:
        node, options = node_id(), spec.options
        root = staging_of(spec, node)
        with suppress(OSError):  # there may be no room: then its checkpoints go on by themselves
            make_directory(root, f"staging_dir (this is node {node})")
        agent = RayStagingAgent(spec, node, root, self)
        settling = Settling(agent, options.timeout_s, options.max_consecutive_failures)
        memory = memory_of(options, spec.owner, node)
        if memory is not None:
            # For a restore, if this node's agent never starts.
            with suppress(OSError), memory.budget.opened():
                mark_as(memory.root, spec.where, spec.begun_by)
        return StagingHome(
            destination, root, agent, node,
            memory=memory, stays_here=is_here,
            checkpoint_depth=options.checkpoint_depth, timeout_s=options.timeout_s,
            settling=settling if options.wait_for == "stored" else None,
            why_lost=lambda key: why_lost(spec, key),
            replicating=self._replicating(spec, node, agent) if options.replicates else None,
            far=self._far_copies(spec, node),
            brought=RayBrought(memory, agent.bring) if memory and not is_here else None,
        )  # fmt: skip

    def _far_copies(self, spec: Spec, node: str) -> RayFarCopies | None:
        home = spec.address.node_id if spec.address is not None else ""
        is_of_use = spec.options.replicates and home not in ("", node)
        return RayFarCopies(spec, home) if is_of_use else None

    def _replicating(self, spec: Spec, node: str, agent: RayStagingAgent) -> Replicating:
        options = spec.options
        return Replicating(
            RayReplicator(spec, node, self), agent.is_stored, may_wait=not options.is_planned,
            fails=options.on_sync_error == "raise", timeout_s=options.timeout_s,
            tell=agent.tell_unreplicated,
        )  # fmt: skip

    def _destination(self, spec: Spec) -> Home:
        if spec.scheme:
            return self._bucket_home(spec)
        root, leased = Path(spec.root, spec.experiment), Path(spec.leased)
        depth = spec.options.checkpoint_depth
        if spec.options.shared:
            where, timeout_s = self.where(), spec.options.timeout_s
            if not self.is_worker():
                return SharedHome(root, spec.writer, depth, leased_root=leased)
            return TimedSharedHome(root, spec.writer, depth, where, timeout_s, leased)
        local = LocalHome(root, spec.writer, depth, leased)
        address = spec.address
        if address is None or address.node_id == node_id():
            return local
        if not ray.is_initialized():
            return LocalHome(root, "", spec.options.checkpoint_depth)  # results read elsewhere
        try:
            # The run's agent ends with its driver, so only the run's own processes rely on it.
            return self.remote(spec, address) if self.is_worker() else self._reopen(spec, address)
        except HomeLostError:
            if root.is_dir() and not self.is_worker():
                return LocalHome(root, "", spec.options.checkpoint_depth)
            return self._reopen(spec, address)

    def _bucket_home(self, spec: Spec) -> BucketHome:
        options, depth = self.storage_options(spec), spec.options.checkpoint_depth
        here = self.where() if self.is_worker() else ""
        url = BucketUrl(spec.scheme, f"{spec.root}/{spec.experiment}")
        bucket = open_bucket(url, options, here=here)
        is_inner = bool(spec.outer_owner)
        leased = open_bucket(BucketUrl(spec.scheme, spec.leased), options) if is_inner else None
        return BucketHome(bucket, spec.writer, depth, leased=leased)

    def storage_options(self, spec: Spec) -> dict[str, Any]:
        """See `Connector.storage_options`. A worker asks the driver's agent for them, once.

        After the driver's death, it asks whoever keeps them for the run's node agents.
        """
        found = kept(spec.key)
        if found is None and spec.address is not None and spec.address.agent_name:
            found = _ask_for_options(spec, spec.address.agent_name)
            keep(spec.key, found)
        return found or {}

    def take_turn(self, spec: Spec) -> None:
        """See `Connector.take_turn`."""
        take_turn(spec.experiment)

    def finish_earlier(self, spec: Spec) -> None:
        """See `Connector.finish_earlier`."""
        if ray.is_initialized() and not ray.util.client.ray.is_connected():
            options = self.storage_options(spec) if spec.scheme else {}
            home = "" if spec.scheme or spec.options.shared else node_id()
            finish_earlier(spec.where, spec.options.timeout_s, options, home)

    def tell_unstored(self, spec: Spec, key: str, reason: str | None) -> None:
        """See `Connector.tell_unstored`."""
        if spec.address is not None and spec.address.home_name and ray.is_initialized():
            tell_unstored(spec.address.home_name, spec.where, key, reason)

    def unstored(self, spec: Spec, *, is_last: bool = True) -> dict[str, str]:
        """See `Connector.unstored`."""
        if spec.address is None or not spec.address.home_name or not ray.is_initialized():
            return {}
        timeout_s = START_TIMEOUT_S if is_last else TELL_TIMEOUT_S
        if is_last and (noted := _NOTED.pop(spec.where, None)) is not None:
            ray.wait([noted], timeout=timeout_s)
        return ask_unstored(spec.address.home_name, spec.where, timeout_s, is_last=is_last)

    def reported(self, spec: Spec, report: Report) -> None:
        """See `Connector.reported`."""
        if self.is_worker():
            count_report(report, spec.experiment, node_id())

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

    def remote(self, spec: Spec, address: Address) -> RemoteHome:
        """The home, through its agent. Raises HomeLostError if that has ended."""
        return RemoteHome(
            address.agent_name, f"{spec.root}/{spec.experiment}", spec.writer,
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
        return self.remote(spec, start_home(address.node_id))


def _ask_for_options(spec: Spec, agent_name: str) -> dict[str, Any] | None:
    if not ray.is_initialized():
        return None
    return ask_options(agent_name, TOLD_TIMEOUT_S) or ask_options(keeper_of(spec))


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


def why_lost(spec: Spec, checkpoint: str) -> str:
    """Why the driver of a run has given a checkpoint up, as it told its home agent; else ""."""
    try:
        runs = ask_agents(NAMESPACE, (HOME,)).runs
    except Exception as error:  # whoever waits asks again
        logger.debug("nobody tells whether %s is lost: %s", checkpoint, error)
        return ""
    mine = (run.lost for run in runs if run.spec.owner == spec.owner)
    return next((lost[checkpoint] for lost in mine if checkpoint in lost), "")


def start_bucket(options: Mapping[str, Any] | None) -> Address:
    """What workers need with a bucket: an agent that knows the options, if there are any.

    And the home agent, which `note_run` starts.
    """
    name = start_options(options) if options else ""
    return Address(node_id(), name, _agent_at(node_id()))


def start_home(home_node_id: str) -> Address:
    """Start this process's home agent on a node, or find it running."""
    name = _agent_at(home_node_id)
    start_agent(name, home_node_id)
    return Address(home_node_id, name, name)


def note_run(spec: Spec) -> Any:
    """Let others on the cluster find this process's run by its name. Does not wait.

    Returns:
        The agent that knows it now; None if there can be none. That is no failure of the run.
    """
    node = node_id()
    _NOTED.pop(spec.where, None)
    try:
        agent = begin_agent(_agent_at(node), node)
        _NOTED[spec.where] = agent.note_run.remote(spec.where, KnownRun(spec.to_plain()))
    except Exception as error:
        logger.debug("%s is not found by its name: %s", spec.where, error)
        return None
    return agent


def home_of(spec: Spec) -> Home:
    """The home of a run that an agent knows, for a reader.

    Raises:
        HomeLostError: It is on a node that is gone.
    """
    connector = RayConnector()
    timeout_s = min(spec.options.timeout_s, READER_TIMEOUT_S)
    options = replace(spec.options.without_staging(), timeout_s=timeout_s)
    reader = replace(spec, owner="", outer_owner="", options=options)
    address = spec.address
    if spec.scheme or address is None or address.node_id == node_id():
        return connector.home(reader)
    try:
        return connector.remote(reader, address)
    except HomeLostError:  # it has ended with its driver
        return connector.home(reader)


def _agent_at(home_node_id: str) -> str:
    return _AGENTS.setdefault((connection(), home_node_id), f"{HOME}{uuid.uuid4().hex}")
