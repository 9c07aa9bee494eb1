"""Has state go on without checkpoints that Ray keeps and that cannot be published.

A state waits for what it names. One checkpoint of which an object was lost, or that its store
refuses for ever, would hold up all states of the experiment, and all deletes with them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import pyarrow.fs as pafs

from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import TuneSyncError
from tune_sync.restoring import ray_records
from tune_sync.run import Run

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def go_on_without_unpublished(
    run: Run, trials: Collection[Any], filesystem: pafs.PyFileSystem
) -> None:
    """Have no state name what the publisher gave up, and no trial go on from it.

    It stays in Ray's list: Ray deletes it when its time comes, and then it is not missed.
    """
    unnamed = run.publisher.given_up() | run.publisher.left_out
    paths = frozenset(f"{run.root}/{checkpoint}" for checkpoint in unnamed)
    if paths == run.corrections.never and unnamed == run.publisher.left_out:
        return
    run.corrections.never = paths  # before any correction: each takes these out
    for trial in trials:  # also of such as named one when Ray last noted them
        _go_back(run, trial, paths)
        _correct(run, trial, paths, filesystem)
    run.publisher.leave_out(unnamed)


def start_without_unpublished(run: Run, trial: Any, filesystem: pafs.PyFileSystem) -> None:
    """The same of a trial that starts: it may be new, or told to go on from another one's."""
    if run.corrections.never:
        _correct(run, trial, run.corrections.never, filesystem)


def published_result(run: Run, trial: Any, key: str, filesystem: pafs.PyFileSystem) -> Any:
    """A result of a checkpoint that is published and that Ray does not know any more."""
    manifest = run.home.committer.manifest(key)
    metrics = manifest.metrics if manifest is not None else None
    checkpoint = Checkpoint(f"{run.root}/{key}", filesystem)
    return ray_records.result_of(trial, checkpoint, metrics)


def _go_back(run: Run, trial: Any, paths: frozenset[str]) -> None:
    """What could be published after all is a trial's latest again, if nothing came since."""
    replaced, instead = run.corrections.replaced.get(trial.trial_id, (None, None))
    if replaced is not None and replaced.checkpoint.path not in paths:
        del run.corrections.replaced[trial.trial_id]
        if ray_records.current(trial) is instead and replaced in ray_records.results(trial):
            ray_records.go_on_from(trial, replaced)


def _correct(run: Run, trial: Any, paths: frozenset[str], filesystem: pafs.PyFileSystem) -> None:
    now = ray_records.current(trial)
    if now is not None and now.checkpoint and now.checkpoint.path in paths:
        instead = ray_records.newest_left(trial, paths) or _spared(run, trial, filesystem)
        ray_records.go_on_from(trial, instead)
        run.corrections.replaced[trial.trial_id] = (now, instead)
        logger.warning(
            "%s: %s cannot be published; state names %s instead, and so does a retry; fit() raises "
            "at its end, unless Ray has deleted it by then", trial, now.checkpoint.path,
            instead.checkpoint.path if instead is not None else "none",
        )  # fmt: skip
    run.corrections.put(trial.trial_id, ray_records.correction(trial, paths))


def _spared(run: Run, trial: Any, filesystem: pafs.PyFileSystem) -> Any:
    """The newest that Ray let go of and that is still there, or None. Ray keeps it again."""
    for key in run.publisher.doomed_in(ray_records.directory_of(trial)):
        if not run.spare(key):
            continue
        try:
            result = published_result(run, trial, key, filesystem)
        except (TuneSyncError, OSError) as error:
            logger.warning("%s cannot be looked at, and stays: %s", key, error)
            continue
        ray_records.put_first(trial, result)
        return result
    return None
