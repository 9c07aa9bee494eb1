"""Several searches at once in one driver process, one a thread. Argument: a list of searches."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import ray

from tests.hosts.drivers import search


def run(spec: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """One search from start to end. Ray cannot register two trainables in the same instant."""
    time.sleep(wait_s)
    return search.describe(search.tuner_of(spec).fit())


def main() -> None:
    specs = json.loads(sys.argv[1])
    ray.init(log_to_driver=False)
    with ThreadPoolExecutor(len(specs)) as pool:
        found = list(pool.map(run, specs, count()))
    print("RESULT " + json.dumps({"runs": found}), flush=True)


if __name__ == "__main__":
    main()
