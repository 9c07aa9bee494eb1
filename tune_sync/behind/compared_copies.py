"""`ComparedCopies`: what is staged on this node, less what is of another try than is published.

A trial that is killed while its report waits leaves a whole copy that the driver never heard of,
and its next try reports, from another node, under the same name.
"""

from __future__ import annotations

import logging

from tune_sync import layout
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.homes.home import Home
from tune_sync.transfer.digests import read_manifest

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class ComparedCopies:
    """Methods may be called from any thread.

    Args:
        copies: What is staged here.
        destination: Where it is published.
    """

    def __init__(self, copies: NodeCopies, destination: Home) -> None:
        self._copies = copies
        self._destination = destination
        # Attempt -> whether it is what is published, which never changes; None: nobody answered.
        self._is_stored: dict[str, bool | None] = {}

    def whole(self, checkpoint: str) -> CopyHere | None:
        """The whole copy that is here, if nothing else is published.

        If the destination does not answer, it counts from then on.
        """
        copy = self._copies.whole(checkpoint)
        if copy is not None and copy.attempt not in self._is_stored:
            self._compare(copy)
        return self.known(checkpoint)

    def known(self, checkpoint: str) -> CopyHere | None:
        """`whole`, as far as that is known without asking the destination."""
        copy = self._copies.whole(checkpoint)
        return None if copy is None or self._is_stored.get(copy.attempt) is False else copy

    def hides_manifest(self, checkpoint: str) -> bool:
        """Whether a copy is read here that no manifest tells of."""
        copy = self.whole(checkpoint)
        return copy is not None and not self._is_stored.get(copy.attempt)

    def is_published(self, checkpoint: str) -> bool:
        """Whether it is at the destination, for all to see."""
        mark = layout.manifest_key(checkpoint) if self._destination.in_place else checkpoint
        return self._destination.info(mark) is not None

    # Inside

    def _compare(self, copy: CopyHere) -> None:
        try:
            manifest = read_manifest(self._destination, copy.checkpoint)
            if manifest is not None:
                self._is_stored[copy.attempt] = copy.is_of(manifest)
            elif not self._destination.in_place and self.is_published(copy.checkpoint):
                self._is_stored[copy.attempt] = False  # it is recorded in a moment: nobody can tell
        except Exception as error:  # who reads asks several times: each of them would wait for it
            logger.debug("%s is read as it is on this node: %s", copy.checkpoint, error)
            self._is_stored[copy.attempt] = None
