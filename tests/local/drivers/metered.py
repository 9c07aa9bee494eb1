"""Runs on a Ray of its own, and what Prometheus would read meanwhile: `STORAGE`."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import ray

from tests.local.halting import TIMEOUT_S, halting
from tests.local.trainables import HALF
from tune_sync.agents.meters import NodeMeters

INTERVAL_MS = 1000
SAMPLE = re.compile(r"ray_(tune_sync_\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')

Found = dict[str, float]


def read(experiment: str) -> Found:
    """Metric -> its value, of one experiment, summed over processes. Checks the tags.

    A transport, where it is one of the tags, is a part of the name.
    """
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    found: Found = {}
    for name, labels, value in SAMPLE.findall(text):
        tags = dict(LABEL.findall(labels))
        if tags["experiment"] == experiment:
            assert tags["node"] == node["NodeID"], tags
            name = " by ".join(filter(None, (name, tags.get("transport"))))
            found[name] = found.get(name, 0.0) + float(value)
    return found


def until(experiment: str, holds: Callable[[Found], bool]) -> Found:
    """What is read once it is so, or when time is up."""
    end_s = time.monotonic() + TIMEOUT_S
    while not holds(found := read(experiment)) and time.monotonic() < end_s:
        time.sleep(0.2)
    return found


def main() -> None:
    storage = Path(sys.argv[1])
    ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000,
        log_to_driver=False, _system_config={"metrics_report_interval_ms": INTERVAL_MS},
    )  # fmt: skip
    found: dict[str, Found] = {}
    with halting(storage, "stored", "direct"):
        name = "tune_sync_stored_checkpoints_total"
        found["direct"] = until("direct", lambda f: f.get(name, 0) >= HALF)
    found["direct, at its end"] = until("direct", lambda f: f.get(name, 0) >= 2 * HALF)
    with halting(storage, "staged", "staged") as run:
        with run.refusing():
            run.go_on()
            name, stored = "tune_sync_staged_checkpoints", "tune_sync_stored_checkpoints_total"
            # The first half was staged too, a moment ago.
            found["refusing"] = until(
                "staged", lambda f: f.get(name, 0) >= HALF and f.get(stored, 0) >= HALF
            )
        run.wait_until_stored(2 * HALF)
        found["taking"] = until("staged", lambda f: f.get(name, HALF) == 0)
    name = "tune_sync_stored_checkpoints_total"
    found["staged, at its end"] = until("staged", lambda f: f.get(name, 0) >= 2 * HALF)
    meters = NodeMeters("replicated")  # replicas need two nodes
    for tcp_bytes in (5, 5, 7):
        meters.show_replicas({"tcp": tcp_bytes, "object_store": 2})
    name = "tune_sync_replica_bytes_total by tcp"
    found["replicated"] = until("replicated", lambda f: f.get(name, 0) >= 7)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
