"""Makes Ray go on without checkpoints that were lost with the node where they were staged."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import pyarrow.fs as pafs

from tune_sync.behind.behind import Behind
from tune_sync.restoring import ray_records
from tune_sync.restoring.unpublished import go_on_without_unpublished, published_result
from tune_sync.run import Run

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def go_on_without_lost(run: Run, trials: Collection[Any], filesystem: pafs.PyFileSystem) -> None:
    """Have Ray forget what was lost; a trial goes on from its newest that is published.

    Where nothing is staged on nodes: see `go_on_without_unpublished`.

    Args:
        run: The run.
        trials: Ray's.
        filesystem: The run's.
    """
    if run.behind is None:
        go_on_without_unpublished(run, trials, filesystem)
        return
    gone = run.behind.take_gone()
    if not gone:
        return
    for trial in trials:
        lost = [r for r in ray_records.results(trial) if ray_records.key_of(run, r) in gone]
        if lost:
            _forget(run, run.behind, trial, lost, filesystem)


def _forget(
    run: Run, behind: Behind, trial: Any, lost: list[Any], filesystem: pafs.PyFileSystem
) -> None:
    before = ray_records.current(trial)
    left = [r for _, r in sorted(ray_records.kept(trial).items()) if r not in lost]
    now = None if before in lost else before
    newest = _newest_stored(run, behind, ray_records.directory_of(trial))
    stored = next((r for r in left if ray_records.key_of(run, r) == newest), None)
    if now is None:
        now = stored
        if now is None and newest:
            now = published_result(run, trial, newest, filesystem)
            run.spare(newest)
            left = [*left, now]
    ray_records.keep_only(trial, left, now)
    paths, instead = {r.checkpoint.path for r in lost}, now if before in lost else stored
    run.corrections.put(trial.trial_id, ray_records.correction(trial, paths, instead))
    for key in sorted({ray_records.key_of(run, result) for result in lost}):
        logger.warning(
            "%s: checkpoint %s is lost (%s); its newest that is stored is %s",
            trial, key, behind.why_lost(key), newest or "none",
        )  # fmt: skip


def _newest_stored(run: Run, behind: Behind, directory: str) -> str:
    """Of this run; of those before it, if this one has published none yet; "" if there is none."""
    own = behind.newest_published(directory)
    earlier = "" if own else run.newest_of_earlier(directory)
    return earlier if earlier and run.home.committer.manifest(earlier) is not None else own
