"""Ray's saved experiment state with other records of checkpoints in it. Pure: no I/O.

Relies on the shape of `experiment_state-*.json`; docs/design/ray-adapter.md says on what.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tune_sync.errors import DamagedError

_ENDED = ("TERMINATED", "ERROR")
_RECORD = "checkpoint_manager"


class NotYetError(Exception):
    """A state says that trials have ended whose last checkpoints are not there.

    Attributes:
        trial_ids: Of these trials.
    """

    def __init__(self, trial_ids: Sequence[str]) -> None:
        super().__init__(trial_ids)
        self.trial_ids = trial_ids


class Rewrite(Protocol):
    """Makes another record of what a state says of a trial."""

    def __call__(self, noted: str, lost: frozenset[str], instead: Any) -> Any:
        """See `Correction`.

        Args:
            noted: What a state says of the trial, in Ray's JSON.
            lost: What is taken out.
            instead: What the trial goes on from if its latest is; None: what is left.

        Returns:
            The record, as Ray's encoder makes it; None if nothing is taken out.
        """


@dataclass(frozen=True, slots=True)
class Correction:
    """What a state must not name of a trial any more, though Ray noted it before.

    A state is held until what it names is there. So it is not given a later record, only less.

    Attributes:
        lost: Checkpoints that are taken out.
        kept: Checkpoints that are surely not.
        rewrite: Takes them out.
        instead: See `Rewrite`.
    """

    lost: frozenset[str]
    kept: frozenset[str]
    rewrite: Rewrite
    instead: Any = None

    def after(self, earlier: Correction | None) -> Correction:
        """Both."""
        if earlier is None:
            return self
        lost, instead = (self.lost | earlier.lost) - self.kept, self.instead or earlier.instead
        return replace(self, lost=lost, instead=instead)

    def record(self, noted: str) -> Any:
        """What is to be written of a trial; None: what is noted."""
        return self.rewrite(noted, self.lost, self.instead)


class Corrections:
    """Those of one run. Methods may be called from any thread.

    Attributes:
        never: What is taken out of each trial that is put from now on, though Ray keeps it.
        replaced: By trial id: the latest result that one of these was, and what took its place.
    """

    def __init__(self) -> None:
        self.never: frozenset[str] = frozenset()
        self.replaced: dict[str, tuple[Any, Any]] = {}
        self._known: Mapping[str, Correction] = {}  # by trial id; replaced whole

    def put(self, trial_id: str, correction: Correction) -> None:
        """What is written of a trial from now on."""
        after = correction.after(self._known.get(trial_id))
        after = replace(after, lost=after.lost | self.never)
        self._known = {**self._known, trial_id: after}

    def __bool__(self) -> bool:
        return bool(self._known)

    def apply(
        self, state: bytes, records: Mapping[str, Any] | None = None, unready: Collection[str] = ()
    ) -> bytes:
        """The state as it is to be written now; see `with_records`."""
        return with_records(state, records or {}, unready, self._known)


def is_torn(body: bytes) -> bool:
    """Whether Ray changed the file while it was copied: it does not wait. A whole one follows."""
    try:
        json.loads(body)
    except ValueError:
        return True
    return False


def with_records(
    body: bytes, records: Mapping[str, Any], unready: Collection[str],
    corrections: Mapping[str, Correction],
) -> bytes:  # fmt: skip
    """A state in which trials have the records of checkpoints that are given.

    Args:
        body: As Ray wrote it.
        records: Trial id -> its record, as Ray's encoder makes it.
        unready: Ids of trials whose last checkpoint is not there: they must not have ended.
        corrections: Trial id -> see there; for trials that `records` does not hold.

    Raises:
        NotYetError: The state says that some of these have ended.
        DamagedError: Its shape is not known.
    """
    try:
        state = json.loads(body)
        ended = [_put_record(pair, records, corrections) for pair in state["trial_data"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedError(
            f"this version of Ray writes its experiment state in another shape ({error!r}); leave "
            "out sync_on_checkpoint=False and keep_best"
        ) from error
    early = sorted({*ended} & {*unready})
    if early:
        raise NotYetError(early)
    return json.dumps(state).encode()


def _put_record(
    pair: list[str], records: Mapping[str, Any], corrections: Mapping[str, Correction]
) -> str:
    """Returns the trial's id if it has ended, else ""."""
    trial = json.loads(pair[0])
    trial_id = str(trial["trial_id"])
    record, correction = records.get(trial_id), corrections.get(trial_id)
    if record is None and correction is not None:
        record = correction.record(pair[1])
    if record is not None:
        metadata = json.loads(pair[1])
        if _RECORD not in metadata:
            raise KeyError(_RECORD)
        metadata[_RECORD] = record
        pair[1] = json.dumps(metadata)
    return trial_id if trial["status"] in _ENDED else ""
