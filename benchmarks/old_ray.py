"""Ray 2.6.3's own default syncing, run with that Ray: python -m benchmarks.old_ray ADDRESS IP

`sync_dir_between_nodes` is what a Tuner run of Ray 2.6 calls for every trial directory when
RAY_AIR_REENABLE_DEPRECATED_SYNC_TO_HEAD_NODE=1 is set, with `max_size_bytes=None` as here.
It does not make anything durable, which is in its favour.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import free_large_files
from benchmarks.orders import serve

PORT = 6390
TEMP_DIR = "/tmp/old"
# Apart from the ports that the other Ray takes on the same hosts.
WORKER_PORTS = (30000, 30999)


def start_argv(ray: Path, address: str, head_address: str | None, store_bytes: int) -> list[str]:
    """The command that runs a node of that Ray in the foreground, beside the other Ray's."""
    role = [f"--address={head_address}:{PORT}"]
    if head_address is None:
        role = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={TEMP_DIR}",
                "--ray-client-server-port=31001"]  # fmt: skip
    return [
        str(ray), "start", *role, f"--node-ip-address={address}", "--num-cpus=1", "--num-gpus=0",
        f"--object-store-memory={store_bytes}", f"--resources={json.dumps({address: 8})}",
        f"--min-worker-port={WORKER_PORTS[0]}", f"--max-worker-port={WORKER_PORTS[1]}",
        "--dashboard-agent-listen-port=31002", "--dashboard-agent-grpc-port=31003",
        "--metrics-export-port=31004", "--disable-usage-stats", "--block",
    ]  # fmt: skip


def main(head_address: str, source_ip: str) -> None:
    """Answer orders `{"directory": ..., "target": ...}`."""
    import ray
    from ray.tune.utils.file_transfer import sync_dir_between_nodes

    ray.init(f"{head_address}:{PORT}", _node_ip_address=head_address, log_to_driver=False)

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        target = Path(order["target"])
        start_s = time.monotonic()
        sync_dir_between_nodes(
            source_ip, order["directory"], head_address, str(target), max_size_bytes=None
        )
        seconds = time.monotonic() - start_s
        return {"seconds": seconds, "got_bytes": free_large_files(target)}

    serve(answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
