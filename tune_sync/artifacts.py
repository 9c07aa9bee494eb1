"""Files of a trial's working directory that cannot be stored, told of instead of the whole copy.

Ray copies that directory as one, ends with the first file that is refused, and does not tell at a
trial's end. So what cannot be stored is left out here, and the others are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tune_sync import layout
from tune_sync.errors import PathRefusedError

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# What Ray's driver writes into the directory of a trial, and reads again.
DRIVER_FILES = frozenset(
    ("result.json", "progress.csv", "params.json", "params.pkl", "error.txt", "error.pkl")
)


class Artifacts:
    """Those of one process. Methods may be called from any thread.

    Args:
        failed: Called with the key of what is not stored, and why, so that the run's end says so.
        depth: See `layout.classify`.
    """

    def __init__(self, failed: Callable[[str, Exception], None], depth: int) -> None:
        self._failed, self._depth = failed, depth
        self._told = set[str]()

    def is_of_driver(self, key: str) -> bool:
        """Whether a file would take the place of one of the driver's. Warns of each once."""
        trial, _, name = key.partition("/")
        if not self._depth or not trial or name not in DRIVER_FILES:
            return False
        if key not in self._told:
            self._told.add(key)
            logger.warning(
                "%s, which the trial wrote, is not stored: the driver's own file has that name; "
                "choose another name",
                key,
            )
        return True

    def refuse(self, key: str, error: PathRefusedError) -> None:
        """Tell of a file, or directory, that is refused. Raises it unless it is an artifact."""
        parts = key.split("/")
        is_top = len(parts) <= self._depth or parts[0] == layout.INTERNAL_DIR
        if not self._depth or is_top or layout.is_checkpoint_name(parts[self._depth]):
            raise error
        self._tell("/".join(parts[: layout.MAX_DEPTH + 1]), error)  # of all that is below it once

    def refuse_name(self, key: str) -> None:
        """Tell of a file that has the name of a checkpoint, which is a directory."""
        why = "a file cannot have the name of a checkpoint; choose another name"
        self._tell(key, PathRefusedError(why))

    def _tell(self, key: str, error: PathRefusedError) -> None:
        if key not in self._told:
            self._told.add(key)
            self._failed(key, error)
