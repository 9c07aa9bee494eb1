"""What Prometheus reads of a run's replicas on each host, once there is any: `NAME`."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

import ray

from tests.local.drivers.metered import LABEL, SAMPLE

NAME = "tune_sync_replica_bytes_total"
WAIT_S = 60.0


def read(node: dict[str, Any], experiment: str) -> dict[str, float]:
    """Transport -> bytes that have come to a node."""
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        samples = SAMPLE.findall(answer.read().decode())
    tagged = [
        (dict(LABEL.findall(labels)), float(v)) for name, labels, v in samples if name == NAME
    ]
    return {
        tags["transport"]: value
        for tags, value in tagged
        if (tags["experiment"], tags["node"]) == (experiment, node["NodeID"])
    }


def main() -> None:
    ray.init(log_to_driver=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    end_s, found = time.monotonic() + WAIT_S, dict[str, dict[str, float]]()
    while not any(found.values()) and time.monotonic() < end_s:
        time.sleep(0.5)
        found = {node["NodeManagerAddress"]: read(node, sys.argv[1]) for node in nodes}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
