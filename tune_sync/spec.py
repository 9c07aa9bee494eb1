"""A run's filesystem as plain data, and how a process reaches the run's home with it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from tune_sync.buckets.url import BucketUrl
from tune_sync.fastpath.transport_names import AUTO
from tune_sync.homes.home import Home
from tune_sync.report import Report


@dataclass(frozen=True, slots=True)
class Address:
    """Where a run's home is reached.

    Attributes:
        node_id: Of the Ray node of its driver.
        agent_name: The agent to ask: the home agent, or for a bucket that with its options, if any.
        home_name: The home agent, which also hears of what is not stored; "" if older versions
            wrote it.
    """

    node_id: str
    agent_name: str
    home_name: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that travel with the filesystem. See `SyncConfig` for their meaning.

    Attributes:
        keeps_all: Nothing deletes checkpoints, as far as is known.
        replicates: Two nodes have what is staged. Unlike `wait_for`, whoever sends it on knows it.
        tls: Paths of a certificate, its key and the authority; or none of them.
        ports: The first and the last that a node may listen on; none: any.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout_s: float = 1800.0
    strict: bool = False
    shared: bool = False
    checkpoint_depth: int = 1
    wait_for: str = "stored"
    on_sync_error: str = "raise"
    max_consecutive_failures: int = 0
    staging_dir: str = ""
    staging_limit_bytes: int = 0
    sync_on_checkpoint: bool = True
    sync_period_s: float = 300.0
    max_bandwidth_bytes_per_s: int = 0
    max_concurrent_transfers: int = 0
    memory_dir: str = ""
    memory_limit_bytes: int = 0
    max_checkpoints_in_memory: int = 2
    keep_best: int = 0
    keeps_all: bool = False
    replicates: bool = False
    transport: str = AUTO
    transport_required: bool = False
    tls: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    rdma_device: str | None = None
    rdma_port: int | None = None
    rdma_gid_index: int | None = None

    @property
    def is_planned(self) -> bool:
        """Whether nodes send only what the driver tells them to."""
        return not self.sync_on_checkpoint or self.max_concurrent_transfers > 0

    @property
    def stages(self) -> bool:
        """Whether checkpoints are staged on the node that writes them."""
        return self.wait_for in ("staged", "replicated") or self.on_sync_error == "continue"

    def without_staging(self) -> Options:
        """For whoever sends on what is staged."""
        return replace(self, wait_for="stored", on_sync_error="raise")


@dataclass(frozen=True, slots=True)
class Spec:
    """A handler as plain data.

    Attributes:
        key: One handler a process and key.
        root: The storage path: absolute, on the home node; or "bucket/path".
        experiment: Name of the experiment directory below it; "" until Ray chose one.
        owner: Id of the run that holds the lease; "" before it started.
        address: Where the home agent is; None before the run started.
        options: The user's settings.
        scheme: Of the bucket that is the home; "" if it is a directory.
        outer_owner: Of a trainer inside of a trial, which has no lease of its own: id of the run
            of that trial. Its experiment directory is the one above `root`.
        begun_by: Id of the run that began the experiment; "" if that is not known, or not needed.
    """

    key: str
    root: str
    experiment: str
    owner: str
    address: Address | None
    options: Options
    scheme: str = ""
    outer_owner: str = ""
    begun_by: str = ""

    @property
    def writer(self) -> str:
        """Id of the run that has to hold the lease when something is written; "" before that."""
        return self.owner or self.outer_owner

    @property
    def leased(self) -> str:
        """The directory with the lease: absolute, or "bucket/path"."""
        return (
            posixpath.dirname(self.root) if self.outer_owner else f"{self.root}/{self.experiment}"
        )

    @property
    def where(self) -> str:
        """The experiment directory, as users name it: a path or a URL."""
        path = f"{self.root}/{self.experiment}"
        return str(BucketUrl(self.scheme, path)) if self.scheme else path

    @property
    def home_node(self) -> str:
        """The Ray node whose disk alone has the results; "" if others reach them by themselves."""
        is_everywhere = self.scheme or self.options.shared or self.address is None
        return "" if is_everywhere or self.address is None else self.address.node_id

    def to_plain(self) -> dict[str, Any]:
        """Strings, numbers and lists only: what other versions can read."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Spec:
        """Read what some version wrote: takes what it knows, and has defaults for the rest."""
        address, options = plain.get("address"), plain.get("options") or {}
        known = {f.name for f in fields(Options)}
        return cls(
            plain["key"], plain["root"], plain["experiment"], plain["owner"],
            _address_from(address) if address else None,
            Options(**{name: value for name, value in options.items() if name in known}),
            str(plain.get("scheme", "")), str(plain.get("outer_owner", "")),
            str(plain.get("begun_by", "")),
        )  # fmt: skip


def _address_from(plain: Mapping[str, Any]) -> Address:
    return Address(plain["node_id"], plain["agent_name"], str(plain.get("home_name", "")))


class Connector(Protocol):
    """How a process reaches the home. Implemented with Ray in `agents.connect`."""

    def home(self, spec: Spec) -> Home:
        """The home of a started run, or of a finished one that is still readable."""

    def storage_options(self, spec: Spec) -> dict[str, Any]:
        """What `SyncConfig.storage_options` says, for a home that is a bucket."""

    def take_turn(self, spec: Spec) -> None:
        """Let no other run of this name start in the same second. See `turns_to_start`."""

    def finish_earlier(self, spec: Spec) -> None:
        """Let the nodes send what an earlier run of the experiment has staged there."""

    def tell_unstored(self, spec: Spec, key: str, reason: str | None) -> None:
        """Let the driver know, at the end of the run, why a file is not stored. Best effort.

        None for why: it is stored after all.
        """

    def unstored(self, spec: Spec, *, is_last: bool = True) -> dict[str, str]:
        """What trials told: the file's key -> why it is not stored.

        Args:
            spec: The run's.
            is_last: It is at its end: it is waited for longer, and told what is not sure.

        Raises:
            HomeLostError: It is not known.
        """

    def reported(self, spec: Spec, report: Report) -> None:
        """Export what a report has come to. Returns at once."""

    def rank(self) -> int:
        """World rank of this process; 0 outside multi-process training."""

    def ranks_count(self) -> int:
        """How many processes report to one trial; 1 outside multi-process training."""

    def where(self) -> str:
        """Names this node for messages."""

    def check_here(self, spec: Spec) -> None:
        """Where a trial is starting, raise NotSharedError if a shared home is not seen there."""

    def is_worker(self) -> bool:
        """Whether this process is a Ray worker, not a driver."""
