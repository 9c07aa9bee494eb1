"""`fetch_experiment`: brings an experiment back from its mirror, to restore it."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import (
    ConfigError,
    NotWholeError,
    StoreDeniedError,
    StoreError,
    TuneSyncError,
)
from tune_sync.homes.digests import first_different
from tune_sync.homes.recorded import recorded
from tune_sync.homes.sites import LocalSite, check_format
from tune_sync.homes.store import LocalStore
from tune_sync.manifest import Manifest, manifest_of
from tune_sync.mirror.record import (
    MARK_NAME,
    MIRROR_DIR,
    MirrorRecord,
    experiment_of,
    save_record,
)
from tune_sync.mirror.state import check_state, put_back_state
from tune_sync.syncers.base import Syncer, exits_told

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# What there is of an experiment whose start was refused: Ray's files, and our directory.
START_NAMES = layout.START_FILES | {layout.INTERNAL_DIR}


def fetch_experiment(
    remote_dir: str | os.PathLike[str], path: str | os.PathLike[str], syncer: Syncer
) -> Path:
    """Bring an experiment back from where a syncer of your own has sent it.

    For when the driver's disk is gone: `tune.Tuner.restore(path, trainable=...)` goes on from it.
    Call it only when no run sends there any more. Every checkpoint is compared with its digests;
    one that is not wholly there, as after a driver was killed while it sent it, is left out.

    Args:
        remote_dir: `<upload_dir>/<name of the experiment>`.
        path: The directory to make; it must not exist, or hold only a start that was refused. If
            it has the same name, the restored run goes on sending to `remote_dir`.
        syncer: The one of the run's `SyncConfig`, or one that reaches the same place.

    Returns:
        `path`, as an absolute path.

    Raises:
        FileExistsError: `path` exists.
        FileNotFoundError: No experiment is in `remote_dir`, or none that can be restored.
        DamagedError: A file of its state came cut off.
        Exception: What the syncer raises.
    """
    if not isinstance(syncer, Syncer):
        raise ConfigError(f"fetch_experiment(syncer={syncer!r}): a Syncer is needed")
    target, remote = Path(path).expanduser().absolute(), os.fspath(remote_dir).rstrip("/")
    _check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{uuid.uuid4().hex}")
    try:
        with exits_told(f"{type(syncer).__name__} of {remote}"):
            if syncer.sync_down(remote, str(partial)) is False:
                raise ConfigError(f"{type(syncer).__name__}.sync_down did not start")
            _wait(syncer, remote)
        _tidy(partial, remote)
        LocalStore(partial).sync_tree("")
        _check_free(target)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # a download may have made a file of it
            partial.unlink()
    return target


def _wait(syncer: Syncer, remote: str) -> None:
    try:
        syncer.wait()
    except StoreError as error:
        if type(error) is not StoreError:  # as of time, which has a way out of its own
            raise
        raise StoreError(
            f"nothing can be fetched from {remote}: {error}; is there an experiment of this name? "
            "Give <upload_dir>/<name of the experiment>, or correct the syncer's download"
        ) from error


def _check_free(target: Path) -> None:
    if os.path.lexists(target) and not _holds_only_a_start(target):
        raise FileExistsError(
            f"{target} exists, and a fetched experiment is never mixed with it; choose a path that "
            "does not, or move it away"
        )


def _holds_only_a_start(root: Path) -> bool:
    """Whether it is what a run left that was refused: the earlier experiment is at the mirror."""
    site = LocalSite(root)
    if root.is_symlink() or not site.is_ours() or not START_NAMES.issuperset(os.listdir(root)):
        return False
    has_staged = any((root / layout.STAGING_DIR).glob("*"))
    return not has_staged and not site.holds_experiment() and site.live_holder() is None


def _tidy(root: Path, remote: str) -> None:
    """Leave out what is not whole, and note what is where."""
    mark = root / MIRROR_DIR / MARK_NAME
    if not mark.is_file() or not (root / layout.FORMAT_KEY).is_file():
        raise FileNotFoundError(
            f"{remote} holds no experiment that tune_sync has sent; give "
            "<upload_dir>/<name of the experiment>"
        )
    check_format((root / layout.FORMAT_KEY).read_bytes(), f"{remote}/{layout.FORMAT_KEY}", remote)
    experiment = experiment_of(mark.read_bytes(), f"{remote}/{MIRROR_DIR}/{MARK_NAME}")
    store = LocalStore(root)
    touched = {*_checkpoint_directories(root), *recorded(store)}
    whole = {checkpoint for checkpoint in touched if _is_whole(store, checkpoint, remote)}
    for checkpoint in touched - whole:
        store.remove(layout.manifest_key(checkpoint))
        store.remove_tree(checkpoint)
    record = MirrorRecord(experiment, remote, tuple(sorted(touched)), tuple(sorted(whole)))
    save_record(store, record)
    proven = put_back_state(root)
    if not any(root.glob("experiment_state-*.json")):
        raise FileNotFoundError(
            f"{remote} holds no experiment_state-*.json: its driver was lost before the first one "
            "was sent; start the experiment anew, under another name"
        )
    check_state(root, remote, proven)


def _checkpoint_directories(root: Path) -> Iterator[str]:
    for path in root.glob("*/checkpoint_*"):
        key = path.relative_to(root).as_posix()
        if path.is_dir() and layout.is_checkpoint_name(path.name):
            yield key


def _is_whole(store: LocalStore, checkpoint: str, remote: str) -> bool:
    try:
        _check(store, _manifest(store, checkpoint))
    except FileNotFoundError:  # deleted there, and its manifest stays
        return False
    except StoreDeniedError:  # it may well be: what is left out may be deleted there
        raise
    except TuneSyncError as error:
        logger.warning("%s is left out: it is not whole in %s: %s", checkpoint, remote, error)
        return False
    return True


def _manifest(store: LocalStore, checkpoint: str) -> Manifest:
    key = layout.manifest_key(checkpoint)
    if store.info(checkpoint) is None:
        raise FileNotFoundError(checkpoint)
    if store.info(key) is None:
        raise NotWholeError("it has no manifest")
    return manifest_of(checkpoint, store.read(key), key)


def _check(store: LocalStore, manifest: Manifest) -> None:
    """Raise NotWholeError if a file differs from its digest; make directories that are missing."""
    for directory in manifest.directories:  # stores without directories keep none that is empty
        store.make_dir(f"{manifest.checkpoint}/{directory}")
    if different := first_different(store.path(manifest.checkpoint), manifest.files):
        raise NotWholeError(different)
