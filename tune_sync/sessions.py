"""Under which name this session's state is kept, where an earlier session had a greater one.

Ray names its state, and what is beside it, by the local time at which a driver began, and goes on
from what has the greatest name. In another time zone, at the end of summer time, or where a clock
was set back, a restored run's name is less than that of the run before: its state would count for
nothing, and a later restore would go on from an old one, whose checkpoints are deleted by then.
So it takes the greatest name that is there. A file is replaced whole, and by a rename or a put:
at each moment one of both is there, and whoever copies the directory by its names has the newest.

Ray copies all that earlier sessions left in its staging directory again, with each version. What
has not changed since this session began is theirs, and is not written: it would undo that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tune_sync.homes.digests import digest_of_file
from tune_sync.layout import STATE_FILES, states_like


class Sessions:
    """What earlier sessions left to one run. Methods may be called from any thread."""

    def __init__(self, left: Mapping[str, str] | None = None) -> None:
        """Of what has these names, and digests."""
        self._left = dict(left or {})
        self._greatest = {
            pattern: name for name in sorted(self._left) for pattern in states_like(name)
        }

    @classmethod
    def of(cls, staging: str) -> Sessions:
        """Of those who had Ray's staging directory on this node before.

        A restore has brought all that is at home there, and this session has written nothing yet.
        """
        found = [path for pattern in STATE_FILES for path in Path(staging).glob(pattern)]
        return cls({path.name: digest_of_file(path) for path in found})

    def place(self, key: str) -> str:
        """Where a file of this session belongs, at home."""
        return max([key, *(self._greatest.get(pattern, "") for pattern in states_like(key))])

    def left(self, key: str, digest: str) -> bool:
        """Whether a file that Ray copies is of an earlier session."""
        return self._left.get(key) == digest
