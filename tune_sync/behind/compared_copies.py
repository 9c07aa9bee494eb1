"""`ComparedCopies`: what is staged on this node, less what is of another try than is published.

A trial that is killed while its report waits leaves a whole copy that the driver never heard of,
and its next try reports, from another node, under the same name.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from tune_sync import layout
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.behind.united_copy import UnitedCopy, whole_of
from tune_sync.errors import StoreUnreachableError
from tune_sync.homes.home import Home
from tune_sync.transfer.digests import read_manifest
from tune_sync.worker import answer_within, asked

# An answer takes milliseconds. Whoever begins where the destination is out goes on after this.
ANSWER_TIMEOUT_S = 30.0

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


Whole = CopyHere | UnitedCopy


class ComparedCopies:
    """Methods may be called from any thread.

    Of what this node's agent has noted as published nobody is asked.

    Args:
        copies: What is staged here.
        destination: Where it is published.
        timeout_s: How long its answer is waited for.
    """

    def __init__(
        self, copies: NodeCopies, destination: Home, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._copies = copies
        self._destination = destination
        self._timeout_s = timeout_s
        # Attempt -> whether it is what is published, which never changes; None: nobody answered.
        self._is_stored: dict[str, bool | None] = {}
        self._unanswered: dict[str, Future[bool]] = {}  # by checkpoint
        self._unpublished: set[str] = set()  # attempts, when they were looked at

    def whole(self, checkpoint: str, *, afresh: bool = True) -> Whole | None:
        """The whole copy that is here, if nothing else is published.

        If the destination does not answer, it counts from then on.

        Args:
            checkpoint: Its key.
            afresh: Somebody begins to read it. Else what was found before holds: of two tries,
                one reader never gets files of both.
        """
        copy = whole_of(self._copies, checkpoint)
        if copy is not None and not self._is_known(copy.attempt, afresh):
            self._look(copy)
        return self.known(checkpoint)

    def known(self, checkpoint: str) -> Whole | None:
        """`whole`, as far as that is known without asking the destination."""
        copy = whole_of(self._copies, checkpoint)
        return None if copy is None or self._is_stored.get(copy.attempt) is False else copy

    def hides_manifest(self, checkpoint: str) -> bool:
        """Whether a copy is read here that no manifest tells of."""
        copy = self.whole(checkpoint, afresh=False)
        return copy is not None and not self._is_stored.get(copy.attempt)

    def is_published(self, checkpoint: str) -> bool:
        """Whether it is at the destination, for all to see; False too if that does not answer."""
        answer = asked(lambda: self._is_recorded(checkpoint))
        try:
            return answer.result(self._timeout_s)
        except (FutureTimeoutError, StoreUnreachableError):
            self._unanswered[checkpoint] = answer
            return False

    def wait_for_answer(self, checkpoint: str) -> None:
        """Return once the destination has answered `is_published`. Raises what it answers."""
        answer = self._unanswered.pop(checkpoint, None)
        if answer is not None:
            answer.result()

    # Inside

    def _is_recorded(self, checkpoint: str) -> bool:
        mark = layout.manifest_key(checkpoint) if self._destination.in_place else checkpoint
        return self._destination.info(mark) is not None

    def _is_known(self, attempt: str, afresh: bool) -> bool:
        return attempt in self._is_stored or (not afresh and attempt in self._unpublished)

    def _look(self, copy: Whole) -> None:
        if copy.is_published():
            self._is_stored[copy.attempt] = True
            return
        try:
            is_stored = answer_within(lambda: self._compare(copy), self._timeout_s)
        except Exception as error:  # who reads asks several times: each would wait for it
            logger.debug("%s is read as it is on this node: %r", copy.checkpoint, error)
            self._is_stored[copy.attempt] = None
            return
        if is_stored is None:
            self._unpublished.add(copy.attempt)
        else:
            self._is_stored[copy.attempt] = is_stored

    def _compare(self, copy: Whole) -> bool | None:
        """Whether it is what is published; None if nothing is."""
        manifest = read_manifest(self._destination, copy.checkpoint)
        if manifest is not None:
            return copy.is_of(manifest)
        is_recorded_soon = not self._destination.in_place and self._is_recorded(copy.checkpoint)
        return False if is_recorded_soon else None  # before that nobody can tell
