"""Runs in the head host: answers each line on its input with Ray's nodes, one JSON line each.

    {address: alive}

One process that stays connected, as starting Python with Ray costs a second of a core each time.
The two private names are the same from Ray 2.43 to 2.60, and need no driver and no job.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer until the input closes."""
    # Neither module has type hints, so they are loaded as what they are: anything.
    state_module: Any = importlib.import_module("ray._private.state")
    core: Any = importlib.import_module("ray._raylet")
    head = os.environ["RAY_ADDRESS"]
    options = core.GcsClientOptions.create(
        head, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    state = state_module.GlobalState()
    state._initialize_global_state(options)
    for _ in sys.stdin:
        alive: dict[str, bool] = {}
        for node in state.node_table():
            address = node["NodeManagerAddress"]
            alive[address] = alive.get(address, False) or node["Alive"]
        print(json.dumps(alive), flush=True)


if __name__ == "__main__":
    main()
