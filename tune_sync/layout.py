"""What a path inside an experiment directory is. Pure: no I/O.

A *key* is a POSIX path relative to the experiment directory, as Ray lays it out:

```
experiment_state-….json, tuner.pkl, …          STATE, as are "" and <trial>
<trial>/checkpoint_000000/…                    CHECKPOINT
checkpoint_2026-…/…                            CHECKPOINT of Ray Train by itself (depth 0)
<trial>/result.json, <trial>/plots/a.png, …    TRIAL_FILE
.tune_sync/…                                   INTERNAL (ours; everything else is Ray's own layout)
```
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tune_sync.errors import ConfigError, PathRefusedError

INTERNAL_DIR = ".tune_sync"
MARKER = ".validate_storage_marker"  # Ray looks for it on every node, in every report
STAGING_DIR = f"{INTERNAL_DIR}/staging"
INCOMING_DIR = f"{INTERNAL_DIR}/incoming"
MANIFESTS_DIR = f"{INTERNAL_DIR}/manifests"
TRASH_DIR = f"{INTERNAL_DIR}/trash"
INNER_DIR = f"{INTERNAL_DIR}/inner"
REPORTED_DIR = f"{INTERNAL_DIR}/reported"
LEASE_KEY = f"{INTERNAL_DIR}/lease.json"
FORMAT_KEY = f"{INTERNAL_DIR}/format.json"
EXPERIMENT_KEY = f"{INTERNAL_DIR}/experiment.json"
# Ray Train's file that names its checkpoints, at the top of an experiment; and that there was one.
TRAIN_RECORD = "checkpoint_manager_snapshot.json"
TRAIN_RECORD_STORED = f"{INTERNAL_DIR}/train_record_stored.json"
# What Ray writes at the top when a run starts, and again and again: of each kind it takes the
# greatest name.
START_FILES = frozenset(("tuner.pkl", "trainable.pkl", MARKER))
SEARCH_FILES = ("basic-variant-state-*.json", "search_gen_state-*.json", "searcher-state-*.pkl")
STATE_FILES = ("experiment_state-*.json", *SEARCH_FILES, "callback-states-*.pkl")
SEAL = "seal.json"  # in staging: what an attempt holds, once it is complete
INTENT = "manifest.json"  # in staging: the manifest that is going to be

# Of one name in a directory.
MOST_NAME_BYTES = 255

# Deeper trees than this come from a symbolic link to its own parent: Arrow follows it 40 times.
MAX_DEPTH = 32
# `.tune_sync/staging/`, an attempt and `data` come on top.
STAGING_DEPTH = 4

# Ray Tune counts, with six digits or more; Ray Train writes the time.
_CHECKPOINT = re.compile(r"checkpoint_([0-9]{6,}|[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-\S+)")


class Kind(enum.Enum):
    """What a key stands for."""

    STATE = "state"
    CHECKPOINT = "checkpoint"
    TRIAL_FILE = "trial file"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Place:
    """A classified key.

    Attributes:
        kind: What the key stands for.
        trial: The trial's directory name, or "" where there is none.
        checkpoint: The key of the checkpoint directory that holds it, or "".
        inner: The path inside that checkpoint directory; "" is the directory itself.
    """

    kind: Kind
    trial: str = ""
    checkpoint: str = ""
    inner: str = ""


def check_key(key: str) -> str:
    """Return `key` if it stays inside its root.

    Raises:
        PathRefusedError: It is absolute, holds "." or ".." or empty parts or a NUL, or nests
            deeper than any path of `MAX_DEPTH` in staging.
    """
    parts = key.split("/")
    if key and (any(part in ("", ".", "..") for part in parts) or not _is_a_name(key)):
        raise PathRefusedError(
            f"path {key!r} does not stay inside its directory; refused: give one without '.', "
            "'..', empty parts and NUL"
        )
    _check_depth(key, MAX_DEPTH + STAGING_DEPTH)
    return key


def check_experiment(name: str) -> str:
    """Return the name of an experiment if a directory, and a bucket, can have it.

    Raises:
        ConfigError: It is empty or too long, or has a character that is no text, or that controls.
        PathRefusedError: It leaves the storage path.
    """
    controls = any(ord(c) < 32 or ord(c) == 127 for c in name)
    size_bytes = max(len(part.encode(errors="replace")) for part in name.split("/"))
    is_text = not any("\ud800" <= c <= "\udfff" for c in name)
    if not name or controls or not is_text or size_bytes > MOST_NAME_BYTES:
        raise ConfigError(
            f"an experiment cannot be named {name[:80]!r}: give 1 to {MOST_NAME_BYTES} bytes of "
            f"UTF-8 without control characters (this has {size_bytes} bytes)"
        )
    if INTERNAL_DIR in name.split("/"):
        raise ConfigError(f"an experiment cannot be named {name!r}: that is our own directory")
    return check_key(name)


def check_trial(directory: str) -> str:
    """Return the name of a trial's directory if nothing else in an experiment has such names.

    Raises:
        ConfigError: A checkpoint has such a name, our own directory, or a file of the run.
    """
    owner = "our own directory" if directory == INTERNAL_DIR else ""
    if is_checkpoint_name(directory):
        owner = "a checkpoint"
    if directory in {*START_FILES, TRAIN_RECORD} or states_like(directory):
        owner = "a file of the run"
    if owner:
        raise ConfigError(
            f"the directory of a trial cannot be named {directory!r}: {owner} has such a name; "
            "have trial_dirname_creator return another one, under another name of the experiment"
        )
    return directory


def _is_a_name(key: str) -> bool:
    """Whether a disk takes it: also bytes that are no text, as Python writes them."""
    try:
        return b"\0" not in key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _check_depth(key: str, limit: int) -> None:
    if key.count("/") >= limit:
        raise PathRefusedError(
            f"path {key[:80]!r}… is more than {MAX_DEPTH} levels deep; "
            "nest less deeply; or is there a symbolic link to its own parent directory? Remove it"
        )


def check_inside(path: str, place: Place) -> None:
    """Raise PathRefusedError for a file that is a checkpoint: that is a directory of files."""
    if not place.inner:
        raise PathRefusedError(
            f"{path}: a file was reported as a checkpoint; give Checkpoint.from_directory the "
            "directory that holds it"
        )


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory of this name is a checkpoint, as Ray names them."""
    return _CHECKPOINT.fullmatch(name) is not None


def checkpoint_number(key: str) -> int | None:
    """The number that Ray Tune gave to a checkpoint; None for other names."""
    found = _CHECKPOINT.fullmatch(key.rpartition("/")[2])
    return int(found[1]) if found and found[1].isdigit() else None


def by_age(checkpoint: str) -> tuple[int, str]:
    """Sorts the checkpoints of one trial, the latest last: numbers may have more digits."""
    return len(checkpoint), checkpoint


def checkpoint_name(number: int) -> str:
    """How Ray Tune names a checkpoint."""
    return f"checkpoint_{number:06d}"


def classify(key: str, *, checkpoint_depth: int = 1) -> Place:
    """Say what `key` is.

    Args:
        key: A path relative to the experiment directory; "" is that directory.
        checkpoint_depth: How many directories lie above a checkpoint: 1 for Ray Tune
            (`<trial>/checkpoint_…`), 0 for Ray Train (`checkpoint_…`).

    Raises:
        PathRefusedError: See `check_key`; or it nests deeper than `MAX_DEPTH`; or a checkpoint
            that would hold its own experiment.
    """
    _check_depth(key, MAX_DEPTH)
    parts = check_key(key).split("/")
    if parts[0] == INTERNAL_DIR:
        return Place(Kind.INTERNAL)
    trial = parts[0] if checkpoint_depth else ""
    if len(parts) > checkpoint_depth and is_checkpoint_name(parts[checkpoint_depth]):
        end = checkpoint_depth + 1
        if INTERNAL_DIR in parts[end:]:
            raise PathRefusedError(
                f"{'/'.join(parts[:end])}: the reported directory has a {INTERNAL_DIR} in it: "
                f"either it {_overlap(parts[end:])} of this run, and would be stored in itself, or "
                "it holds results of another one, or a directory of that name; report a directory "
                "that holds no results, and give one of your own another name"
            )
        return Place(Kind.CHECKPOINT, trial, "/".join(parts[:end]), "/".join(parts[end:]))
    if len(parts) == 1:
        return Place(Kind.STATE)
    return Place(Kind.TRIAL_FILE, trial)


def _overlap(inner: list[str]) -> str:
    """What a directory is where `INTERNAL_DIR` of an experiment has such a path in it."""
    depth = inner.index(INTERNAL_DIR)
    if depth == 0:
        return "is the experiment directory"
    return "is the storage path" if depth == 1 else "holds the storage path"


def is_state(name: str) -> bool:
    """Whether a file of that name, at the top, is a state of Ray's: it names checkpoints."""
    is_at_top = "/" not in name
    return is_at_top and name.startswith("experiment_state-") and name.endswith(".json")


def is_search(name: str) -> bool:
    """Whether a file of that name, at the top, tells which trials a search has made by now."""
    return any(kind in SEARCH_FILES for kind in states_like(name))


def states_like(name: str) -> list[str]:
    """Those of `STATE_FILES` that a name at the top is of."""
    return [p for p in STATE_FILES if "/" not in name and fnmatchcase(name, p)]


def below(root: str, path: str) -> str | None:
    """`path` relative to `root`, "" for itself, None if it is elsewhere."""
    path, root = path.rstrip("/"), root.rstrip("/")
    if path == root:
        return ""
    return path[len(root) + 1 :] if path.startswith(root + "/") else None


def attempt_key(checkpoint: str, attempt: str) -> str:
    """The staging directory of one attempt at a checkpoint."""
    return f"{STAGING_DIR}/{checkpoint}/{attempt}"


def staged_key(checkpoint: str, attempt: str) -> str:
    """Where the bytes of an attempt are written."""
    return f"{attempt_key(checkpoint, attempt)}/data"


def reported_key(checkpoint: str) -> str:
    """Where a driver that cannot publish a checkpoint notes what it is made of."""
    return f"{REPORTED_DIR}/{checkpoint}.json"


def seal_key(checkpoint: str, attempt: str) -> str:
    """Where the list of what an attempt holds is, once it is complete."""
    return f"{attempt_key(checkpoint, attempt)}/{SEAL}"


def intent_key(checkpoint: str, attempt: str) -> str:
    """Where the future manifest is, from when the checkpoint is placed until it is recorded."""
    return f"{attempt_key(checkpoint, attempt)}/{INTENT}"


def manifest_key(checkpoint: str) -> str:
    """Where the manifest of a published checkpoint is."""
    return f"{MANIFESTS_DIR}/{checkpoint}.json"


def parent(key: str) -> str:
    """The directory that holds `key`."""
    return key.rpartition("/")[0]
