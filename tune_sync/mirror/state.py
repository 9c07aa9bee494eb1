"""The state of an experiment at its mirror: sent twice, so that one of the two is always whole.

Not every tool puts a file in its place whole: `cp` and `scp` that are cut off leave half of one. So
state goes into a directory of ours first, with a list of its digests, and then to where Ray has
it. Whoever fetches takes the first if it agrees with its list, else the second.
"""

from __future__ import annotations

import json
import pickletools
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.digests import digest_of_file
from tune_sync.mirror.record import MIRROR_DIR

STATE_DIR = f"{MIRROR_DIR}/state"
LIST_NAME = "digests.json"

# How one begins. What a search saves may be one whatever it is called, and a searcher of the user's
# saves what it likes.
_PICKLE = b"\x80"


def list_json(digests: Mapping[str, str]) -> bytes:
    """The list: name of a file of Ray's state -> its digest."""
    return json.dumps({"digests": dict(sorted(digests.items()))}).encode()


def put_back_state(root: Path) -> tuple[str, ...]:
    """In a fetched experiment, take the state that is whole, and forget the other.

    Returns:
        Names of the files whose digests tell that they are whole.
    """
    first = root / STATE_DIR
    names = _whole_names(first)
    for name in names:
        (first / name).replace(root / name)
    shutil.rmtree(first, ignore_errors=True)
    return names


def check_state(root: Path, remote: str, whole: Collection[str]) -> None:
    """Raise DamagedError for a file that Ray would read in a restore and that has no end.

    Nothing is unpickled. Files of the start are on no list of digests.

    Args:
        root: The fetched experiment.
        remote: Where it came from, for messages.
        whole: Names of files that are not looked at.
    """
    for pattern in (*layout.START_FILES, *layout.STATE_FILES):
        for path in (path for path in root.glob(pattern) if path.name not in whole):
            try:
                _read_through(path)
            except (ValueError, OverflowError) as error:
                raise DamagedError(
                    f"{remote}/{path.name} is not whole ({error}): fetch it again; if it is cut "
                    "off there too, only the checkpoints beside it can be used, by a new experiment"
                ) from error


def _read_through(path: Path) -> None:
    with open(path, "rb") as file:
        start = file.read(1)
        file.seek(0)
        is_of_search = layout.is_search(path.name)
        if start == _PICKLE or (path.suffix == ".pkl" and not (start and is_of_search)):
            for _ in pickletools.genops(file):
                pass
        elif path.suffix == ".json":
            json.load(file)


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
