"""What the driver of a run does with what has arrived, in the order of `Behind`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.crash.invariants import STATE_KEY, ViolatedError
from tests.crash_staging.unanswered import NoAnswerError, Unanswered
from tune_sync.errors import TuneSyncError

if TYPE_CHECKING:
    from tests.crash_staging.run import Run


class Driver:
    """One turn.

    Args:
        run: Whose.
    """

    def __init__(self, run: Run) -> None:
        self._home, self._backlog, self._ledger = run.home, run.backlog, run.ledger
        self._asked = Unanswered(run.home, run.unanswered)
        self._parts = run.parts

    def work(self) -> None:
        """Publish what is complete; write the state that may be; delete what that does not name."""
        self._publish()
        held = self._backlog.cut.take()
        if held is not None:
            held.files[STATE_KEY]()
            self._backlog.cut.wrote(held)
        for checkpoint in self._backlog.cut.deletable():
            self._backlog.deleted(checkpoint)
            self._ledger.retire_begins(checkpoint)
            self._home.committer.retire(checkpoint)
            self._ledger.retire_returned(checkpoint)

    def offer_state(self, *names: str) -> None:
        """Ray has made a state that names checkpoints."""
        home, ledger = self._home, self._ledger

        def write() -> None:
            number = ledger.state_begins(names)
            body = json.dumps({"number": number, "checkpoints": names}).encode()
            home.put_file(STATE_KEY, body, durable=True)
            ledger.state_returned(number)

        self._backlog.cut.offer(STATE_KEY, write, is_state=True)

    def _publish(self) -> None:
        def published(checkpoint: str) -> None:
            self._backlog.published(checkpoint)
            self._ledger.record_returned(checkpoint, self._ledger.wholes[checkpoint][-1])

        def refused(checkpoint: str, error: TuneSyncError) -> None:
            raise ViolatedError(f"SENT: {checkpoint} cannot be published: {error}") from error

        arrivals = self._parts.arrivals(self._asked, published, refused)
        error = arrivals.publish(self._backlog.complete())
        if error is not None and not isinstance(error, NoAnswerError):
            raise error
