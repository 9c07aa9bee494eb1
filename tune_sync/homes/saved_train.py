"""What Ray Train's record names, to tell a restore from a fresh start.

Where there is no record Ray Train begins afresh. That is right before the first one was stored; a
note that is made then tells later that one is missing.
"""

from __future__ import annotations

import json
import logging

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
    incoming = home.begin_file()
    home.write(incoming, 0, json.dumps({"format_version": FORMAT_VERSION}).encode())
    home.flush(incoming)
    home.commit_file(incoming, layout.TRAIN_RECORD_STORED, durable=True)


def go_by_record(home: DriverHome, where: str, *, resumes: bool) -> None:
    """Where a run begins: drop what its record does not name. Raises as `check_record` does."""
    if resumes:
        check_record(home, where)
    drop_unnamed(home, where)


def check_record(home: DriverHome, where: str) -> None:
    """Look at the record that a run is to be resumed by; warns of what it does not name.

    Args:
        home: Of the experiment.
        where: Names it in messages.

    Raises:
        DamagedError: The record was stored and is gone, so that Ray Train would begin afresh.
    """
    if was_record_removed(home):
        raise DamagedError(
            f"{where} holds a run of Ray Train, but no {layout.TRAIN_RECORD} that names its "
            "checkpoints; put that file back, or choose another name to start afresh"
        )
    named = _named(home)
    if named == []:
        return
    for checkpoint in home.published_keys():
        if checkpoint not in (named or ()):
            logger.warning(
                "%s/%s is not named by Ray Train, which was ended just then: it does not go on "
                "from it, and never deletes it; remove it if you do not need it", where, checkpoint,
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


def _named(home: Home) -> list[str] | None:
    """See `named_in`. None: there is no record. []: its shape is not known, so nothing is said."""
    found = home.info(layout.TRAIN_RECORD)
    return None if found is None else named_in(home.read(found.key, 0, found.size_bytes))
