"""Copies that the home node has of what other nodes have staged, for who reads elsewhere."""

from __future__ import annotations

import builtins
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import agent_name
from tune_sync.errors import DamagedError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.store import Info
from tune_sync.new_pages import new_pages
from tune_sync.spec import Spec

READ_BYTES = 16 << 20
READS_AT_ONCE = 4
# How often a range is asked for that arrives damaged.
TRIES_COUNT = 3


@dataclass(frozen=True, slots=True)
class FarCopy:
    """A whole copy of a checkpoint on another node. As `behind.node_copies.CopyHere`.

    Each method raises FileNotFoundError once it has gone, or its node does not answer.
    """

    agent: Any
    checkpoint: str
    timeout_s: float

    def info(self, key: str) -> Info | None:
        """See `Home.info`."""
        found: Info | None = self._ask("info", key)
        return found

    def list(self, key: str, recursive: bool) -> builtins.list[Info]:
        """See `Home.list`."""
        found: builtins.list[Info] = self._ask("list", key, recursive)
        return found

    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> memoryview:
        """See `Home.read`. A range that is not what was read there is asked for again.

        Raises:
            DamagedError: It arrived damaged each time.
        """
        if length_bytes is None:
            found = self.info(key)
            if found is None:
                raise FileNotFoundError(key)
            length_bytes = found.size_bytes
        out, got_bytes = memoryview(new_pages(length_bytes)), 0
        starts, running = deque(range(0, length_bytes, READ_BYTES)), deque[tuple[int, int, Any]]()
        while starts or running:
            while starts and len(running) < READS_AT_ONCE:
                start = starts.popleft()
                place = offset_bytes + start, min(READ_BYTES, length_bytes - start)
                running.append((*place, self._start(key, *place)))
            view = self._range(key, *running.popleft())
            out[got_bytes : got_bytes + len(view)] = view
            got_bytes += len(view)
        return out[:got_bytes]

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """See `Home.read_many`."""
        return [bytes(self.read(key)) for key in keys]

    def _range(self, key: str, offset_bytes: int, size_bytes: int, ref: Any) -> memoryview:
        for _ in range(TRIES_COUNT):
            digest, data = self._get(ref)
            if digest_of(memoryview(data)) == digest:
                return memoryview(data)
            ref = self._start(key, offset_bytes, size_bytes)
        raise DamagedError(
            f"{key} arrived damaged from home {TRIES_COUNT} times; have the memory and the network "
            "of both nodes looked at, then try the trial again"
        )

    def _start(self, key: str, offset_bytes: int, size_bytes: int) -> Any:
        return self.agent.read_copy.remote(self.checkpoint, key, offset_bytes, size_bytes)

    def _ask(self, verb: str, *args: object) -> Any:
        return self._get(self.agent.ask_copy.remote(self.checkpoint, verb, *args))

    def _get(self, ref: Any) -> Any:
        return answer_of(ref, self.checkpoint, self.timeout_s)


def answer_of(ref: Any, checkpoint: str, timeout_s: float) -> Any:
    """What another node's agent says of a copy, or raises there.

    Raises:
        FileNotFoundError: It does not answer.
    """
    try:
        return ray.get(ref, timeout=timeout_s)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except RayError as error:
        raise FileNotFoundError(f"{checkpoint} cannot be read elsewhere: {error}") from error


class RayFarCopies:
    """See `behind.node_copies.FarCopies`.

    Args:
        spec: Of the run.
        home: The home node.
    """

    def __init__(self, spec: Spec, home: str) -> None:
        self._name = agent_name(spec, home)
        self._timeout_s = spec.options.timeout_s

    def whole(self, checkpoint: str) -> FarCopy | None:
        """See `FarCopies.whole`."""
        try:
            agent = ray.get_actor(self._name, namespace=NAMESPACE)
            copy = FarCopy(agent, checkpoint, self._timeout_s)
            return copy if copy.info(checkpoint) is not None else None
        except (ValueError, OSError):
            return None
