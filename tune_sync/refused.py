"""What a run could not publish, and whether that may yet be done."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tune_sync.errors import WRONG_IN_ITSELF

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class Refused(dict[str, Exception]):
    """Paths of checkpoints that were reported and not published, and why."""

    def tell(self, found: Mapping[str, Exception]) -> None:
        """Note more of them, and log what is new."""
        for path, error in found.items():
            if path not in self:
                self[path] = error
                logger.error("%s is not stored, and fit() will fail: %s", path, error)

    def may_come(self, path: str) -> bool:
        """Whether the next run may publish a checkpoint that this one could not."""
        return path in self and may_pass(self[path])


def may_pass(error: Exception) -> bool:
    """Whether it may go well another time. Else what was reported is wrong in itself."""
    return not isinstance(error, WRONG_IN_ITSELF)
