"""Asks how far a run is, by its name or path: `NAME_OR_PATH`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import ray

import tune_sync


def main() -> None:
    ray.init(log_to_driver=False)
    found = tune_sync.status(sys.argv[1])
    print("RESULT " + json.dumps({**asdict(found), "text": str(found)}), flush=True)


if __name__ == "__main__":
    main()
