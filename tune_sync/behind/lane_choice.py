"""Which lane replicas take to another node, and why not the one that was wanted. Never in silence.

What one of the two nodes lacks for a transport stays so; that it does not get through may end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tune_sync.behind.replica_door import Entrance
from tune_sync.behind.replica_lane import ReplicaLane, TransportLane
from tune_sync.behind.replica_transports import transports_of
from tune_sync.errors import (
    ConfigError,
    FixCallError,
    PeerLostError,
    PeerRefusedError,
    TransportMissingError,
    TuneSyncError,
)
from tune_sync.fastpath.transport_names import AUTO, NAMES, OBJECT_STORE
from tune_sync.fastpath.transports import Transport
from tune_sync.spec import Options

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class LaneChoice:
    """One process's, to one other node.

    Args:
        options: Of the run.
        knock: Asks the other node for its entrance.
        flush: See `TransportLane`.
        by_store: Goes through the object store.
        timeout_s: How long a message may take.
        before: What was used until now; "" if nothing was.
        warn: Takes what is to be warned of, as `Logger.warning` does.
    """

    def __init__(
        self, options: Options, knock: Callable[[], Entrance], flush: Callable[[str, str], Any],
        by_store: ReplicaLane, timeout_s: float, before: str = "",
        warn: Callable[..., None] = logger.warning,
    ) -> None:  # fmt: skip
        self._options = options
        self._knock = knock
        self._flush = flush
        self._by_store = by_store
        self._timeout_s = timeout_s
        self._before = before
        self._warn = warn
        self._lacking: list[str] = []
        self._lost: list[str] = []

    def lane(self) -> ReplicaLane:
        """The best that works now. A warning names a fallback, and the reason.

        Raises:
            TransportMissingError: One that is required cannot be used.
            PeerLostError: It does not get through now.
            Exception: What `knock` raises, where a transport is required.
        """
        if self._options.transport == OBJECT_STORE:
            return self._by_store
        found = self._by_transport()
        if found is None and self._options.transport_required:
            raise self._refusal()
        lane = found or self._by_store
        self._tell(lane.name)
        return lane

    @property
    def is_worth_another(self) -> bool:
        """Whether a better lane may work later."""
        return bool(self._lost)

    def _by_transport(self) -> ReplicaLane | None:
        entrance = self._entrance()
        if entrance is None:
            return None
        try:
            transports = transports_of(self._options, entrance.token)
        except ConfigError as error:
            self._lacking.append(f"here: {error}")
            return None
        lanes = (self._opened(transport, entrance) for transport in transports)
        return next((lane for lane in lanes if lane is not None), None)

    def _entrance(self) -> Entrance | None:
        try:
            return self._knock()
        except FixCallError as error:
            self._lacking.append(f"on the other node: {error}")
        except Exception as error:  # its agent is gone, say
            if self._options.transport_required:
                raise
            self._lost.append((str(error).splitlines() or [type(error).__name__])[0])
        return None

    def _opened(self, transport: Transport, entrance: Entrance) -> ReplicaLane | None:
        there = entrance.lacks.get(transport.name, "it is not known there; use one version")
        here = "" if there else transport.missing()
        if there or here:
            where = "on the other node" if there else "here"
            self._lacking.append(f"{transport.name}, {where}: {there or here}")
            return None
        instead = None if self._options.transport_required else self._by_store
        try:
            return TransportLane(
                transport, entrance.address, self._flush, instead, self._timeout_s, warn=self._warn
            )
        except (TuneSyncError, OSError) as error:
            lasts = isinstance(error, FixCallError) and not isinstance(error, PeerRefusedError)
            (self._lacking if lasts else self._lost).append(f"{transport.name}: {error}")
            return None

    def _refusal(self) -> Exception:
        why = "; ".join([*self._lacking, *self._lost])
        problem = f"transport {self._options.transport!r} is required, and does not work: {why}"
        if self._lost:
            return PeerLostError(problem)
        return TransportMissingError(f"{problem}; get what is missing, or do not require it")

    def _tell(self, used: str) -> None:
        wanted, why = self._options.transport, "; ".join([*self._lacking, *self._lost])
        is_worse = bool(self._before) and NAMES.index(used) > NAMES.index(self._before)
        # With "auto", that a node has no hardware for the best is no fallback.
        is_best = wanted == AUTO and used != OBJECT_STORE and not self._lost and not is_worse
        if used != wanted and not is_best:
            self._warn("transport %r was asked for; %r is used (%s)", wanted, used, why)
        elif why:
            logger.info("transport %r is used (%s)", used, why)
