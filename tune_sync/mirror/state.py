"""The state of an experiment at its mirror: sent twice, so that one of the two is always whole.

Not every tool puts a file in its place whole: `cp` and `scp` that are cut off leave half of one. So
state goes into a directory of ours first, with a list of its digests, and then to where Ray has
it. Whoever fetches takes the first if it agrees with its list, else the second.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tune_sync.homes.digests import digest_of_file
from tune_sync.mirror.record import MIRROR_DIR

STATE_DIR = f"{MIRROR_DIR}/state"
LIST_NAME = "digests.json"


def list_json(digests: Mapping[str, str]) -> bytes:
    """The list: name of a file of Ray's state -> its digest."""
    return json.dumps({"digests": dict(sorted(digests.items()))}).encode()


def put_back_state(root: Path) -> None:
    """In a fetched experiment, take the state that is whole, and forget the other."""
    first = root / STATE_DIR
    names = _whole_names(first)
    for name in names:
        (first / name).replace(root / name)
    shutil.rmtree(first, ignore_errors=True)


def _whole_names(directory: Path) -> tuple[str, ...]:
    """Names of all files of a state that agrees with its list; none if it does not."""
    try:
        digests = json.loads((directory / LIST_NAME).read_bytes())["digests"]
        for name, digest in digests.items():
            if "/" in name or digest_of_file(directory / name) != digest:
                return ()
        return tuple(digests)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
