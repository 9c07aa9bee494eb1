"""What Prometheus reads of a run's replicas on each host, once all is told: `NAME`.

That is how many bytes have come by each transport, and how many checkpoints are kept.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

import ray

from tests.local.drivers.metered import LABEL, SAMPLE

CAME, KEPT = "tune_sync_replica_bytes_total", "tune_sync_replicated_checkpoints"
WAIT_S = 60.0


def read(node: dict[str, Any], experiment: str) -> dict[str, float]:
    """Transport -> bytes that have come to a node; and `KEPT` -> how many it keeps, if any."""
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        samples = SAMPLE.findall(answer.read().decode())
    found: dict[str, float] = {}
    for name, labels, value in samples:
        tags = dict(LABEL.findall(labels))
        is_meant = (tags["experiment"], tags["node"]) == (experiment, node["NodeID"])
        if is_meant and name == CAME:
            found[tags["transport"]] = float(value)
        elif is_meant and name == KEPT and float(value):
            found[KEPT] = float(value)
    return found


def main() -> None:
    ray.init(log_to_driver=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    end_s, found = time.monotonic() + WAIT_S, dict[str, dict[str, float]]()
    while len({name for one in found.values() for name in one}) < 2 and time.monotonic() < end_s:
        time.sleep(0.5)
        found = {node["NodeManagerAddress"]: read(node, sys.argv[1]) for node in nodes}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
