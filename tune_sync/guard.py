"""Which keys the verbs of a home may touch. Pure.

A home's verbs may be called from any process of the cluster. Bytes go into staging alone, and get
their place by `commit` alone: a published checkpoint can be deleted as a whole and not be changed.
Directories are made, and other files removed, in their place. What is ours (`.tune_sync`, at the
top) is out of reach, but for notes of two kinds: see `plain`. That of an experiment inside of a
trial's directory is kept by the home of that one, and for this one it is files of the trial: those
of a trial that ran one in its own directory are artifacts.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from tune_sync import layout
from tune_sync.errors import ImmutableError, PathRefusedError
from tune_sync.layout import Kind

_ID = re.compile(r"[0-9a-f]{32}")
_ATTEMPT = re.compile(re.escape(layout.STAGING_DIR) + rf"/.+?/{_ID.pattern}/data", re.DOTALL)
_INNER = re.compile(rf"{re.escape(layout.INNER_DIR)}/{_ID.pattern}\.json")
_INCOMING = re.compile(rf"{re.escape(layout.INCOMING_DIR)}/{_ID.pattern}")


def staged(key: str) -> str:
    """Return the key of a file in an attempt, or of one coming in.

    Raises:
        PathRefusedError: It is something else.
    """
    layout.check_key(key)
    found = _ATTEMPT.match(key)
    if _INCOMING.fullmatch(key) or (found and key.startswith(found.group(0) + "/")):
        return key
    raise PathRefusedError(f"refused to write {key!r}: it is not in staging")


def incoming(key: str) -> str:
    """Return the key of a single file coming in. Raises as `staged` does."""
    if _INCOMING.fullmatch(key):
        return key
    raise PathRefusedError(f"refused to move {key!r}: it is not in {layout.INCOMING_DIR}")


def checkpoint(key: str, depth: int) -> str:
    """Return the key of a checkpoint directory.

    Raises:
        PathRefusedError: It is something else.
    """
    place = layout.classify(key, checkpoint_depth=depth)
    if place.kind is Kind.CHECKPOINT and not place.inner:
        return key
    raise PathRefusedError(f"{key!r} is not a checkpoint directory; refused")


def attempt(name: str) -> str:
    """Return the id of an attempt. Raises PathRefusedError if it is something else."""
    if _ID.fullmatch(name):
        return name
    raise PathRefusedError(f"{name!r} is not the id of an attempt; refused")


def plain(key: str, depth: int) -> str:
    """Return the key of state, a log or an artifact: what is neither a checkpoint nor ours.

    Of ours, trials write down where trainers inside of them write, and Ray Train's controller that
    its record is stored, and nothing else.

    Raises:
        PathRefusedError: It is ours, or the experiment directory itself.
        ImmutableError: It is, or is in, a checkpoint.
    """
    if _INNER.fullmatch(key) or key == layout.TRAIN_RECORD_STORED:
        return key
    place = layout.classify(key, checkpoint_depth=depth)
    if place.kind is Kind.CHECKPOINT:
        raise ImmutableError(
            f"{key} is part of a checkpoint, which never changes; delete the checkpoint instead"
        )
    if place.kind is Kind.INTERNAL or not key:
        raise PathRefusedError(f"refused to change {key or 'the whole experiment'!r}")
    return key


def removable(key: str, below: Collection[str]) -> None:
    """Check that a directory can be removed: its checkpoints have to be deleted as such before.

    Else a kill would leave half of one, with the manifest that says that it is whole.

    Args:
        key: Of the directory.
        below: Keys of the files in it, and of the manifests of what is.

    Raises:
        ImmutableError: A published checkpoint is in it, or in an experiment that is.
    """
    filled = {found[:end] for found in below for end, at in enumerate(found) if at == "/"}
    for found in below:
        above, manifests, checkpoint = f"/{found}".rpartition(f"/{layout.MANIFESTS_DIR}/")
        name = f"{above}/{checkpoint.removesuffix('.json')}".lstrip("/")
        if manifests and checkpoint.endswith(".json") and name in filled:
            raise ImmutableError(
                f"{key} holds the published checkpoint {name}: delete its checkpoints first, each "
                "as a whole"
            )


def attempt_root(key: str) -> str:
    """The directory of the attempt that a staged key belongs to."""
    found = _ATTEMPT.match(key)
    return found.group(0) if found else key.rpartition("/")[0]


def staged_part(key: str) -> str:
    """What is sealed or committed as one with a staged key: its attempt, or the file alone."""
    found = _ATTEMPT.match(key)
    return found.group(0) if found else key
