"""How Ray is started in a host, and the environment it and its drivers run in."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.bed.host import TMP

RAY_PORT = 6379
REPOSITORY = Path(__file__).resolve().parents[2]
PYTHONPATH = f"{REPOSITORY}/tests/light:{REPOSITORY}"

# A dead or cut-off node must be noticed within seconds: after four missed answers of two seconds.
# Much tighter limits would declare busy nodes dead on a machine with two cores.
HEALTH_ENV = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    # How long gRPC waits for a vanished peer to acknowledge bytes (as TCP_USER_TIMEOUT). With Ray's
    # two minutes, its head may hang that long on a node that it knows to be dead, if it was just
    # asking it for room: then no trial starts anywhere.
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
}
# Settings of the person who runs the tests that must not leak into hosts.
DROPPED_PREFIXES = ("RAY_", "TUNE_", "XDG_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "COV_")


def host_env(python: Path, home: str, head_address: str, token: str | None) -> dict[str, str]:
    """The environment of everything in a host.

    Args:
        python: The interpreter whose ``bin`` directory comes first in PATH.
        home: The host's HOME.
        head_address: Where the cluster's head is.
        token: The cluster's authentication token; None turns token authentication off.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED_PREFIXES)}
    env |= HEALTH_ENV
    env |= {
        "HOME": home,
        "TMPDIR": TMP,
        "PATH": f"{python.parent}:{env['PATH']}",
        "PYTHONPATH": PYTHONPATH,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "RAY_ADDRESS": f"{head_address}:{RAY_PORT}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled" if token is None else "token",
    }
    if token is not None:
        env["RAY_AUTH_TOKEN"] = token
    return env


def start_argv(
    ray: Path,
    name: str,
    address: str,
    head_address: str | None,
    cpu_count: int,
    object_store_bytes: int,
) -> list[str]:
    """The command that runs a Ray node in the foreground; the head has no ``head_address``."""
    # No autoscaler: there is nothing to scale, and it takes processor time all along.
    role = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false", "--no-monitor"]
    if head_address is not None:
        role = [f"--address={head_address}:{RAY_PORT}"]
    return [
        str(ray),
        "start",
        *role,
        f"--node-ip-address={address}",
        f"--num-cpus={cpu_count}",
        "--num-gpus=0",
        f"--object-store-memory={object_store_bytes}",
        f"--resources={json.dumps({name: 8})}",
        # No test reads in its driver's output what workers print: it is in their logs.
        "--include-log-monitor=false",
        "--disable-usage-stats",
        "--block",
    ]


def is_listening(pid: int, port: int) -> bool:
    """Whether a TCP port is open in the network namespace of a process."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == "0A":  # 0A: LISTEN
                return True
    return False
