"""Copies of an experiment's state on nodes, for when the driver's node loses its disk.

```
<staging>/<run>/<node>/.tune_sync/state/tuner.pkl, experiment_state-….json, …
```

Where results are kept on the driver's node, that node has the only state. A trial's newest
checkpoint stays on the node that wrote it; with this beside it, the two make a restore.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tune_sync import layout
from tune_sync.homes.home import Home
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import Info, LocalStore

STATE_DIR = f"{layout.INTERNAL_DIR}/state"
# How often it is renewed. A restore needs to know which trials there are, and goes on from their
# newest checkpoints; each node reads all of the state from the driver's node.
RENEW_S = 60.0
# What is larger is not Ray's state, but something that a user has put there.
LARGEST_BYTES = 64 << 20


class StateCopy:
    """One node's. For one thread.

    Args:
        root: The run's staging directory on this node.
        open_home: Makes the home that has the state.
        clock: Monotonic seconds.
    """

    def __init__(
        self, root: Path, open_home: Callable[[], Home],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._dir = root / STATE_DIR
        self._open_home = open_home
        self._clock = clock
        self._have: dict[str, Info] = {}
        self._renewed_s = float("-inf")

    def renew(self) -> None:
        """Copy what has changed, if it is time. Raises what the home raises."""
        if self._clock() - self._renewed_s < RENEW_S:
            return
        home = self._open_home()
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # Ray unpickles what is there
        is_whole = True
        for found in home.list("", False):
            is_news = self._have.get(found.key) != found
            if not found.is_dir and is_news and found.size_bytes <= LARGEST_BYTES:
                is_whole = self._copy(home, found) and is_whole
        if is_whole and is_enough(self._have):
            self._renewed_s = self._clock()

    def _copy(self, home: Home, found: Info) -> bool:
        """Copy a file, unless it is replaced just now: what was read may be of two versions."""
        data = home.read(found.key, 0, found.size_bytes)
        if home.info(found.key) != found:
            return False
        put_state(self._dir, found.key, data)
        self._have[found.key] = found
        return True


def is_enough(names: Mapping[str, object]) -> bool:
    """Whether Ray can restore from files of these names, and checkpoints."""
    return "tuner.pkl" in names and any(map(layout.is_state, names))


def read_copy(root: Path) -> tuple[float, dict[str, bytes]]:
    """When a node's copy was renewed last, and its files; none if they are not enough.

    Args:
        root: A run's staging directory on this node.
    """
    files, renewed_s = dict[str, bytes](), 0.0
    with suppress(OSError):
        for path in (root / STATE_DIR).iterdir():
            if not path.name.startswith("."):
                files[path.name] = path.read_bytes()
                renewed_s = max(renewed_s, path.stat().st_mtime)
    return (renewed_s, files) if is_enough(files) else (0.0, {})


def put_state(directory: Path, name: str, data: bytes | memoryview) -> None:
    """Put a file of the state, durably; whoever reads sees the old one or the new one."""
    store = LocalStore(directory)
    store.make_dir("")
    replace_file(store, name, data, fresh=f".{name}.new")  # `read_copy` passes over it
