"""A search that says when fit() has returned, and waits before it looks at the results.

Arguments: the search (see `search`), a file to make in the first statement after fit(), and
a file to wait for.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import ray

from tests.hosts.drivers import search


def main() -> None:
    spec, ended, go_on = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    ray.init(log_to_driver=False)
    results = search.tuner_of(spec).fit()
    ended.touch()
    while not go_on.exists():
        time.sleep(0.1)
    print("RESULT " + json.dumps(search.describe(results)), flush=True)


if __name__ == "__main__":
    main()
