"""Metrics of Ray, which Prometheus reads: what node agents and trials count.

Nothing of this is in the control loop, and nothing of it raises: a run does not end because
somebody would have liked to watch it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from tune_sync.report import Report
from tune_sync.sending.orders import News

logger = logging.getLogger("ray.tune_sync")

TAGS = ("experiment", "node")
# Replicas are counted by what they came by.
REPLICA_BYTES, TRANSPORT = "tune_sync_replica_bytes", "transport"

# What is now; set again and again by node agents.
GAUGES = {
    "tune_sync_staged_checkpoints": "Checkpoints that are staged on their node and not stored yet",
    "tune_sync_staged_bytes": "Their size",
    "tune_sync_oldest_unstored_seconds": "For how long the oldest of them has been staged",
    "tune_sync_failed_checkpoints": "Staged checkpoints that can never be stored",
    "tune_sync_replicated_checkpoints": "Checkpoints that are here in case another node is lost",
    "tune_sync_replicated_bytes": "Their size",
}
# What has been so far; Prometheus appends _total.
COUNTERS = {
    "tune_sync_stored_checkpoints": "Checkpoints that this node has brought to the destination",
    "tune_sync_stored_bytes": "Their size",
    REPLICA_BYTES: "What other nodes have sent this one of replicas, by transport",
    "tune_sync_reports": "Reports with a checkpoint",
    "tune_sync_report_blocked_seconds": "For how long training has waited in them",
}


class NodeMeters:
    """One node agent's. For one thread.

    Args:
        experiment: Name of the experiment.
    """

    def __init__(self, experiment: str) -> None:
        self._tags = {"experiment": experiment, "node": ray.get_runtime_context().get_node_id()}
        self._stored_count = self._stored_bytes = 0
        self._came_bytes: dict[str, int] = {}

    def show(self, news: News) -> None:
        """Export how far the node is."""
        values = (
            news.left_count, news.left_bytes, news.left_s, len(news.failed),
            news.replicas_count, news.replicas_bytes,
        )  # fmt: skip
        for name, value in zip(GAUGES, values, strict=True):
            _set(name, value, self._tags)
        _add("tune_sync_stored_checkpoints", news.stored_count - self._stored_count, self._tags)
        _add("tune_sync_stored_bytes", news.stored_bytes - self._stored_bytes, self._tags)
        self._stored_count, self._stored_bytes = news.stored_count, news.stored_bytes

    def show_replicas(self, came_bytes: Mapping[str, int]) -> None:
        """Export how many bytes of replicas have come by each transport."""
        for transport, size_bytes in came_bytes.items():
            new_bytes = size_bytes - self._came_bytes.get(transport, 0)
            _add(REPLICA_BYTES, new_bytes, {**self._tags, TRANSPORT: transport})
        self._came_bytes = dict(came_bytes)


def count_report(report: Report, experiment: str, node: str) -> None:
    """Count a report of this process."""
    tags = {"experiment": experiment, "node": node}
    _add("tune_sync_reports", 1, tags)
    _add("tune_sync_report_blocked_seconds", report.blocked_s, tags)
    if not report.is_staged:  # else its node agent counts it
        _add("tune_sync_stored_checkpoints", 1, tags)
        _add("tune_sync_stored_bytes", report.size_bytes, tags)


def _set(name: str, value: float, tags: dict[str, str]) -> None:
    try:
        _gauge(name).set(value, tags=tags)
    except Exception as error:  # whatever a Ray without metrics raises
        logger.debug("%s is not exported: %s", name, error)


def _add(name: str, value: float, tags: dict[str, str]) -> None:
    try:
        if value > 0:  # Ray refuses to add nothing
            _counter(name).inc(value, tags=tags)
    except Exception as error:  # whatever a Ray without metrics raises
        logger.debug("%s is not exported: %s", name, error)


@cache
def _gauge(name: str) -> Any:
    return Gauge(name, description=GAUGES[name], tag_keys=TAGS)


@cache
def _counter(name: str) -> Any:
    tags = (*TAGS, TRANSPORT) if name == REPLICA_BYTES else TAGS
    return Counter(name, description=COUNTERS[name], tag_keys=tags)
