"""A search on a directory that hosts share, or do not: the argument is that of ``search.py``.

Prints what ``search.py`` prints, or ``refused``: the error that came in place of any trial.
"""

from __future__ import annotations

import json
import sys

import ray

from tests.hosts.drivers.search import describe, tuner_of
from tune_sync.errors import TuneSyncError


def main() -> None:
    spec = json.loads(sys.argv[1])
    ray.init(log_to_driver=False)
    try:
        results = tuner_of(spec).fit()
    except TuneSyncError as error:
        print("RESULT " + json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
        return
    found = (
        {"errors": [str(error) for error in results.errors]}
        if results.errors
        else describe(results)
    )
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
