"""What Ray Train's record names, to tell a restore from a fresh start.

Where there is no record Ray Train begins afresh. That is right before the first one was stored; a
note that is made then tells later that one is missing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.home import Home
from tune_sync.homes.sites import DriverHome
from tune_sync.manifest import FORMAT_VERSION

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

_NAME = "checkpoint_dir_name"


def named_in(record: bytes | memoryview) -> list[str]:
    """The checkpoints that a record names, the newest last; none if its shape is not known."""
    try:
        body = json.loads(bytes(record))
        noted = [*body["checkpoint_results"], body["latest_checkpoint_result"]]
        names = [str(one[_NAME]) for one in noted if one is not None]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    found = {name for name in names if layout.is_checkpoint_name(name)}
    return sorted(found, key=layout.by_age)


def note_stored(home: Home) -> None:
    """Note that a record is stored; durable on return."""
    body = json.dumps({"format_version": FORMAT_VERSION}).encode()
    home.put_file(layout.TRAIN_RECORD_STORED, body, durable=True)


def go_by_record(home: DriverHome, where: str, *, resumes: bool) -> None:
    """Where a run begins, before it recovers: drop what is staged and its record does not name.

    Args:
        home: Of the experiment.
        where: Names it in messages.
        resumes: Whether Ray Train goes on from that record.

    Raises:
        DamagedError: The record was stored and is gone, so that Ray Train would begin afresh.
    """
    if resumes and was_record_removed(home):
        raise DamagedError(
            f"{where} holds a run of Ray Train, but no {layout.TRAIN_RECORD} that names its "
            "checkpoints; put that file back, or choose another name to start afresh"
        )
    drop_unnamed(home, where)


def retire_unnamed(home: DriverHome, where: str) -> None:
    """Delete what would be reported again and refused; `warn_of_unnamed` of the rest.

    Ray Train goes on from before what its record does not name. Where names are made from steps the
    same one comes again. A kill, or a record that was not stored, leaves one that is later than all
    that are named. Of more, someone may have put an older record there; and of an older version of
    tune_sync it may be the last one of a run that has succeeded: these stay.

    Args:
        home: Of the experiment, after its recovery.
        where: Names it in messages.
    """
    later = _later(_unnamed(home), _named(home) or ())
    if len(later) == 1 and home.info(layout.TRAIN_RECORD_STORED) is not None:
        home.committer.retire(later[0])
        logger.warning(
            "%s/%s is deleted: Ray Train was ended just then, did not note it, and goes on from "
            "before it", where, later[0],
        )  # fmt: skip
    warn_of_unnamed(home, where)


def warn_of_unnamed(home: DriverHome, where: str) -> None:
    """Warn of what is published and no record names. Takes what `retire_unnamed` does."""
    for checkpoint in _unnamed(home):
        logger.warning(
            "%s/%s is not named by Ray Train, which was ended just then: it does not go on from "
            "it, never deletes it, and cannot store another one of that name; remove it if you do "
            "not need it", where, checkpoint,
        )  # fmt: skip


def was_record_removed(home: Home) -> bool:
    """Whether a record was stored that is gone; not by Ray Train."""
    gone = home.info(layout.TRAIN_RECORD) is None
    return gone and home.info(layout.TRAIN_RECORD_STORED) is not None


def drop_unnamed(home: DriverHome, where: str) -> None:
    """Drop what Ray Train has in staging and no record names: nobody would ever delete it.

    Args:
        home: Of the experiment; of Ray Tune's nothing is dropped.
        where: Names it in messages.
    """
    named = _named(home)
    if named == []:
        return
    for checkpoint, attempt in home.committer.attempts(""):
        if layout.is_checkpoint_name(checkpoint) and checkpoint not in (named or ()):
            home.committer.discard_attempt(checkpoint, attempt)
            logger.warning(
                "%s: dropped what was staged of %s: Ray Train did not note it", where, checkpoint
            )


def _later(unnamed: Collection[str], named: Collection[str]) -> list[str]:
    """Those of numbers above all that are named; none where names are not made from numbers."""
    numbers = [n for n in map(layout.checkpoint_number, named) if n is not None]
    if not numbers or len(numbers) < len(named):
        return []
    return [c for c in unnamed if (layout.checkpoint_number(c) or 0) > max(numbers)]


def _unnamed(home: DriverHome) -> list[str]:
    named = _named(home)
    if named == []:
        return []
    published = filter(layout.is_checkpoint_name, home.published_keys())  # none of Ray Tune's
    return [checkpoint for checkpoint in published if checkpoint not in (named or ())]


def _named(home: Home) -> list[str] | None:
    """See `named_in`. None: there is no record. []: its shape is not known, so nothing is said."""
    found = home.info(layout.TRAIN_RECORD)
    if found is None:  # one answer is not enough: what it does not name is dropped
        is_there = any(entry.key == layout.TRAIN_RECORD for entry in home.list("", False))
        return [] if is_there else None
    return named_in(home.read(found.key, 0, found.size_bytes))
