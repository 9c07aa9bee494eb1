"""What fails of several: the others are done all the same, until all of them seem to fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# So many in a row are all that are tried: a destination that is away takes its time for each.
MOST_IN_A_ROW = 3


class Failures:
    """Of one thread."""

    def __init__(self) -> None:
        self._first: Exception | None = None
        self._in_a_row_count = 0

    @contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """Keep the error of one of them, and name it. The last of too many in a row is raised."""
        try:
            yield
        except Exception as error:
            self._first = self._first or error
            self._in_a_row_count += 1
            if self._in_a_row_count >= MOST_IN_A_ROW:
                raise
            logger.warning("%s cannot be sent now, and stays: %s", what, error)
        else:
            self._in_a_row_count = 0

    def check(self) -> None:
        """Raise the first that was kept."""
        if self._first is not None:
            raise self._first
