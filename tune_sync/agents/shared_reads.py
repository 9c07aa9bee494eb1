"""One node reads a stored checkpoint for all: others take it from there, through the object store.

Ray's object store brings a range to as many nodes as want it, and each that has it passes it on.
"""

from __future__ import annotations

import builtins
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from tune_sync import layout
from tune_sync.agents.far_copies import answer_of
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import agent_name
from tune_sync.agents.replica_home import ReplicaHome
from tune_sync.agents.replica_lanes import Warnings, lanes_to
from tune_sync.behind.memory_home import FreeMemory, Memory, MemoryHome
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.behind.replicas import Replicas
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import PathRefusedError, TuneSyncError
from tune_sync.homes.digests import check_digest, digest_of
from tune_sync.homes.home import Home
from tune_sync.homes.store import Info
from tune_sync.new_pages import new_pages
from tune_sync.reading.brought import BroughtCopies, Source, brought_in
from tune_sync.reading.holders import Holders
from tune_sync.spec import Spec

logger = logging.getLogger("ray.tune_sync")

# All nodes ask for the same ranges, so that each is put into the object store once.
RANGE_BYTES = 8 << 20
# What is kept there for nodes that come a moment later.
KEPT_BYTES = 128 << 20
# Whoever waits for readers' copies waits in a thread that does nothing else.
GROUPS = {"readers": 64, "holders": 64, "replica_sends": 64, "ranges": 4}
JOIN_TIMEOUT_S = 20.0
# So many nodes at a time get a replica: reports wait for the same network.
SENDS_COUNT = 4
# One answer of a node that takes a replica.
ANSWER_TIMEOUT_S = 60.0


class ReadService:
    """A part of `NodeAgent`: copies for the readers of its node, and of other nodes.

    Its methods are Ray calls. None takes a path but below a checkpoint that is published.
    """

    _replicas: Replicas

    def _take_readers(
        self, spec: Spec, node: str, memory: Memory | None, open_home: Callable[[], Home],
        free_memory: FreeMemory, start: Callable[[str], Any],
    ) -> None:  # fmt: skip
        """Begin with it. `start` finds the agent of another node, or starts it."""
        self._spec = spec
        self._holders = Holders()
        self._ranges = _Ranges()
        self._sends = threading.Semaphore(SENDS_COUNT)
        self._warnings = Warnings()
        self._brought: BroughtCopies | None = None
        if memory is not None:
            others = _Others(spec, node, self._holders, start)
            self._brought = BroughtCopies(
                memory, open_home, free_memory, others, spec.options.checkpoint_depth
            )

    @ray.method(concurrency_group="readers")  # type: ignore[untyped-decorator]
    def bring(self, checkpoint: str) -> bool:
        """See `BroughtCopies.bring`."""
        return self._brought is not None and self._brought.bring(checkpoint)

    def join_readers(self, checkpoint: str, node: str, gone: str) -> str:
        """See `Holders.join`."""
        return self._holders.join(checkpoint, node, gone)

    @ray.method(concurrency_group="holders")  # type: ignore[untyped-decorator]
    def shared_list(self, checkpoint: str) -> list[Info]:
        """All that a copy for readers holds, once it is whole."""
        return self._copy_here(checkpoint).list(checkpoint, True)

    @ray.method(concurrency_group="ranges")  # type: ignore[untyped-decorator]
    def shared_range(self, checkpoint: str, key: str, offset_bytes: int, size_bytes: int) -> Any:
        """Bytes of a file of such a copy, with their digest: `[ref]`."""
        copy = self._copy_here(checkpoint)
        return self._ranges.of(
            (copy.attempt, key, offset_bytes, size_bytes),
            lambda: copy.read(_inside(checkpoint, key), offset_bytes, size_bytes),
        )

    @ray.method(concurrency_group="ranges")  # type: ignore[untyped-decorator]
    def shared_files(self, checkpoint: str, keys: Sequence[str]) -> Any:
        """All bytes of several files of such a copy, one after the other; as `shared_range`."""
        copy = self._copy_here(checkpoint)
        return self._ranges.of(
            (copy.attempt, *keys),
            lambda: b"".join(copy.read(_inside(checkpoint, key)) for key in keys),
        )

    @ray.method(concurrency_group="replica_sends")  # type: ignore[untyped-decorator]
    def send_replica(self, checkpoint: str, node: str, have: str) -> bool:
        """Put the whole copy that is staged here among another node's copies for readers.

        Args:
            checkpoint: Its key.
            node: The other node.
            have: The attempt that it has a copy of, which may be an earlier one.

        Returns:
            Whether there is one.

        Raises:
            StoreFullError: There is no room for it.
        """
        found = self._replicas.copies.whole(checkpoint)
        if found is None or found.attempt == have:
            return found is not None
        with self._sends, found.held() as directory:
            seal = found.copies.seal(checkpoint, found.attempt)
            if directory is None or seal is None:
                return False
            # Nothing depends on it: a transport that is required is so for reports.
            options = replace(self._spec.options, transport_required=False)
            agent = _agent_of(self._spec, node)
            timeout_s = min(ANSWER_TIMEOUT_S, options.timeout_s)
            lane = lanes_to(agent, options, timeout_s, warn=self._warnings.to(node)).lane()
            try:
                # Two copies on their way never have one name: it may be begun again.
                there = replace(seal, attempt=uuid.uuid4().hex)
                home = ReplicaHome(agent, lane, there, "readers", timeout_s=timeout_s)
                send_attempt(found.copies, checkpoint, seal, home)  # type: ignore[arg-type]
            finally:
                lane.close()
        return True

    def _copy_here(self, checkpoint: str) -> CopyHere:
        if self._brought is None:
            raise FileNotFoundError("this node has no memory for checkpoints")
        return self._brought.wait(checkpoint)

    def _free_brought(self) -> bool:
        return self._brought is not None and self._brought.free()

    def _has_brought(self) -> bool:
        """Whether anybody has read here of late."""
        return self._brought is not None and self._brought.has_some()

    def _room_for_readers(self) -> MemoryHome | None:
        return self._brought.home if self._brought is not None else None

    def _is_read(self) -> bool:
        """Whether somebody reads here just now; removes what nobody does."""
        self._free_brought()
        return self._has_brought()

    def _sweep_brought(self) -> None:
        if self._brought is not None:
            self._brought.sweep()


def _inside(checkpoint: str, key: str) -> str:
    if layout.below(checkpoint, key) is None:
        raise PathRefusedError(f"{key} is not in {checkpoint}")
    return key


class _Ranges:
    """What was put into the object store last."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self._lock = threading.Lock()

    def of(self, name: tuple[Any, ...], read: Callable[[], bytes]) -> list[Any]:
        """`[ref]` of a digest and an array."""
        with self._lock:  # two who want the same wait for one
            found = self._kept.pop(name, None)
            if found is None:
                data = read()
                array = np.frombuffer(data, dtype=np.uint8)
                found = len(data), ray.put((digest_of(data), array))
            self._kept[name] = found
            while sum(size for size, _ in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            return [found[1]]


class _Shared:
    """What another node has for readers of a checkpoint. See `reading.brought.Source`."""

    def __init__(self, agent: Any, checkpoint: str, timeout_s: float) -> None:
        self._agent = agent
        self._checkpoint = checkpoint
        self._timeout_s = timeout_s
        self._sizes: dict[str, int] = {}

    def list(self, key: str, recursive: bool) -> builtins.list[Info]:
        answer = self._agent.shared_list.remote(self._checkpoint)
        while not ray.wait([answer], timeout=JOIN_TIMEOUT_S)[0]:
            ping = self._agent.ping.remote()  # whoever brings it may take long, and must answer
            if not ray.wait([ping], timeout=JOIN_TIMEOUT_S)[0]:
                raise FileNotFoundError(f"the node that brings {self._checkpoint} does not answer")
        found: builtins.list[Info] = self._get(answer)
        self._sizes = {entry.key: entry.size_bytes for entry in found}
        return found

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> memoryview:
        out = memoryview(new_pages(length_bytes))[:length_bytes]
        running = [
            (start, self._agent.shared_range.remote(
                self._checkpoint, key, offset_bytes + start, min(RANGE_BYTES, length_bytes - start)
            ))
            for start in range(0, length_bytes, RANGE_BYTES)
        ]  # fmt: skip
        for start, answer in running:
            data = self._data(key, answer)
            out[start : start + len(data)] = data
        return out

    def read_many(self, keys: Sequence[str]) -> Sequence[bytes]:
        data = self._data(keys[0], self._agent.shared_files.remote(self._checkpoint, keys))
        found, at_bytes = [], 0
        for key in keys:
            found.append(bytes(data[at_bytes : at_bytes + self._sizes[key]]))
            at_bytes += self._sizes[key]
        return found

    def _data(self, key: str, answer: Any) -> memoryview:
        (ref,) = self._get(answer)
        digest, array = self._get(ref)
        data = memoryview(array)
        check_digest(key, data, digest)
        return data

    def _get(self, ref: Any) -> Any:
        return answer_of(ref, self._checkpoint, self._timeout_s)


class _Others:
    """See `reading.brought.Others`. The agent of the home node knows who has what."""

    def __init__(
        self, spec: Spec, node: str, holders: Holders, start: Callable[[str], Any]
    ) -> None:
        self._spec = spec
        self._node = node
        self._home = spec.address.node_id if spec.address is not None else ""
        self._holders = holders
        self._start = start

    def holder(self, checkpoint: str, gone: str = "") -> str:
        if self._home in ("", self._node):
            return self._holders.join(checkpoint, self._node, gone)
        try:
            answer = self._start(self._home).join_readers.remote(checkpoint, self._node, gone)
            return str(ray.get(answer, timeout=JOIN_TIMEOUT_S))
        except (RayError, TuneSyncError) as error:
            logger.debug("nobody tells who reads %s: %s", checkpoint, error)
            return ""

    def copy_of(self, node: str, checkpoint: str) -> Source:
        agent = _agent_of(self._spec, node)
        return _Shared(agent, checkpoint, self._spec.options.timeout_s)

    def take_replica(self, checkpoint: str, have: str) -> bool:
        if self._home in ("", self._node) or not self._spec.options.replicates:
            return False
        home = _agent_of(self._spec, self._home)
        answer = home.send_replica.remote(checkpoint, self._node, have)
        return bool(answer_of(answer, checkpoint, self._spec.options.timeout_s))


def _agent_of(spec: Spec, node: str) -> Any:
    """The agent of a node. Raises FileNotFoundError if it has none."""
    try:
        return ray.get_actor(agent_name(spec, node), namespace=NAMESPACE)
    except ValueError as error:
        raise FileNotFoundError(str(error)) from error


class RayBrought:
    """Copies for readers on this node. See `behind.node_copies.Brought`.

    Args:
        memory: Of the run, on this node.
        ask: Asks the node's agent for one.
    """

    def __init__(self, memory: Memory, ask: Callable[[str], bool]) -> None:
        self._copies: NodeCopies = brought_in(memory)
        self._ask = ask

    def whole(self, checkpoint: str) -> CopyHere | None:
        """See `Brought.whole`."""
        try:
            is_here = self._ask(checkpoint)
            return self._copies.whole(checkpoint) if is_here else None
        except Exception as error:  # nothing depends on it
            logger.debug("%s is not brought for all of this node: %s", checkpoint, error)
            return None

    def here(self, checkpoint: str) -> CopyHere | None:
        """See `Brought.here`."""
        return self._copies.whole(checkpoint)
