"""Trainers inside of trials: what a crash of theirs left goes when that of their experiment does.

Such a trainer (`inner_run_config`) writes below its trial's directory, and has staging and
manifests of its own there, but neither a driver of ours nor a lease: that of the trial's run
counts, and whoever lost that writes nothing more there either. So the experiment notes where there
are any, and whoever takes the experiment's lease after a crash, when all its trials are over,
recovers them too. The notes go with that: a trainer that begins again is noted again.
"""

from __future__ import annotations

import json
import logging

import xxhash

from tune_sync import layout
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    FixCallError,
    LeaseLostError,
    PathRefusedError,
    TuneSyncError,
)
from tune_sync.homes.home import Home
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.saved_train import (
    drop_unnamed,
    retire_unnamed,
    warn_of_unnamed,
    was_record_removed,
)
from tune_sync.homes.sites import DriverHome, Site
from tune_sync.manifest import FORMAT_VERSION

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def note_inner(home: Home, directory: str) -> None:
    """Note that a trainer is about to write into a directory; durable on return.

    Args:
        home: That of the experiment.
        directory: Its key there: `<trial>/<name>`.

    Raises:
        ConfigError: The name is no directory's, or that of a checkpoint, or of what is ours.
    """
    name = directory.partition("/")[2]
    if "/" in name or name == layout.INTERNAL_DIR or layout.is_checkpoint_name(name):
        raise ConfigError(
            f"a trainer in a trial cannot be named {name!r}: a checkpoint has such a name, or what "
            "is ours, or it is not of one directory; give another name to inner_run_config()"
        )
    try:
        layout.check_experiment(name)
    except FixCallError as error:
        raise ConfigError(
            f"a trainer in a trial cannot be named {name[:80]!r}: {error}; give another name to "
            "inner_run_config()"
        ) from error
    body = json.dumps({"format_version": FORMAT_VERSION, "directory": directory}).encode()
    name = xxhash.xxh3_128_hexdigest(directory.encode())
    home.put_file(f"{layout.INNER_DIR}/{name}.json", body, durable=True)


def recover_inner(
    site: Site, home: DriverHome, owner: str, *, strict: bool = False, resumes: bool = False
) -> Recovery:
    """`Committer.recover` for all that are noted; what it did there, by keys of the experiment.

    One that cannot be recovered is told, keeps its note, and is tried again the next time. Nothing
    waits for nodes: none stages what such a trainer reports.

    Args:
        site: The experiment.
        home: That of its run.
        owner: Id of that run.
        strict: See `Committer.recover`.
        resumes: Whether trainers may go on from their records; see `retire_unnamed`.

    Raises:
        LeaseLostError: Another run took over.
    """
    total = Recovery((), ())
    for note in home.store.list(layout.INNER_DIR):
        try:
            directory = _directory(home.store.read(note.key), note.key)
            inner, where = site.inside(directory).home(owner, 0), f"{site.where}/{directory}"
            has_record = not was_record_removed(inner)
            if has_record:
                drop_unnamed(inner, where)
            found = inner.committer.recover(strict=strict)
            total += found.below(directory)
            if has_record:
                look = retire_unnamed if resumes else warn_of_unnamed
                look(inner, where)
            if not found.kept:
                home.remove(note.key)
        except LeaseLostError:
            raise
        except (TuneSyncError, OSError) as error:
            logger.warning("%s: what a trainer left is not tidied: %s", site.where, error)
    return total


def _directory(note: bytes, where: str) -> str:
    try:
        directory = layout.check_key(str(json.loads(note)["directory"]))
    except (ValueError, KeyError, TypeError, RecursionError, PathRefusedError) as error:
        raise DamagedError(f"{where} is not readable ({error!r}); remove it") from error
    if directory.count("/") != 1 or layout.INTERNAL_DIR in directory.split("/"):
        raise DamagedError(f"{where} names {directory!r}, where no trainer writes; remove it")
    return directory
