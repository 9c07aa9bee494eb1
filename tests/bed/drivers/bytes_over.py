"""Moves bytes from another host to this one through Ray, and says how long it took."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import ray


def random_bytes(size_bytes: int) -> Any:
    """An array of this many bytes."""
    return np.random.default_rng(1).integers(0, 255, size_bytes, dtype=np.uint8)


def main(source: str, size_bytes: int) -> None:
    """Fetch one array that a task on the source host makes."""
    ray.init(log_to_driver=False)

    make = ray.remote(num_cpus=0, resources={source: 1})(random_bytes)
    there = make.remote(size_bytes)
    ray.wait([there], fetch_local=False)
    start_s = time.monotonic()
    array = ray.get(there)
    seconds = time.monotonic() - start_s
    print("RESULT " + json.dumps({"seconds": seconds, "size_bytes": array.nbytes}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
