"""Makes Ray go on without checkpoints that were lost with the node where they were staged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from tune_sync.behind.behind import Behind
from tune_sync.behind.telling import Once
from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import TuneSyncError
from tune_sync.restoring import ray_records
from tune_sync.restoring.unpublished import go_on_without_unpublished
from tune_sync.run import Run

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How long a trial that is about to start waits for what the destination says of earlier runs. One
# that does not answer for so long would not let it load anything.
ANSWER_S = 10.0
# After a refusal it is not asked again for so long, however fast the control loop steps.
AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A trial's newest checkpoint at the destination.

    Attributes:
        key: Of the checkpoint; "" if there is none.
        metrics: What was reported with it; None: not known.
    """

    key: str = ""
    metrics: dict[str, Any] | None = None


class LostCheckpoints:
    """One run's. For the thread of Ray's control loop, in which no request is made.

    What this run has published is known here. What earlier ones did is asked for in the background:
    until it is known, Ray's record stays as it is, and no state is written that names what is lost.

    Where nothing is staged on nodes: see `go_on_without_unpublished`.

    Args:
        filesystem: The run's.
    """

    def __init__(self, filesystem: pafs.PyFileSystem) -> None:
        self._filesystem = filesystem
        self._asked: dict[str, Future[Stored]] = {}  # by directory
        self._warn = Once()

    def go_on_without(self, run: Run, trials: Collection[Any], starting: Any = None) -> None:
        """Have Ray forget what was lost; a trial goes on from its newest that is published.

        Call it again and again: what cannot be known yet is left to a later time.

        Args:
            run: The run.
            trials: Ray's.
            starting: The trial of these that is about to load its checkpoint, if any.
        """
        behind = run.behind
        if behind is None:
            go_on_without_unpublished(run, trials, self._filesystem)
            return
        gone = behind.gone()
        if not gone:
            return
        forgotten = set(gone)
        for trial in trials:
            lost = [r for r in ray_records.results(trial) if ray_records.key_of(run, r) in gone]
            if not lost:
                continue
            wait_s = ANSWER_S if trial is starting else 0.0
            stored = self._newest_stored(run, behind, ray_records.directory_of(trial), wait_s)
            if stored is None:
                forgotten.difference_update(ray_records.key_of(run, r) for r in lost)
            else:
                self._forget(run, behind, trial, lost, stored)
        behind.forgot(forgotten)

    def about_to_load(self, run: Run, trials: Collection[Any], trial: Any) -> None:
        """A trial starts: if a node that has its checkpoint is gone, it goes on without that."""
        if run.behind is None:
            return
        if not ray_records.keeps_few(trial):
            run.behind.keep_all()
        if trial.checkpoint is not None:
            run.behind.check_nodes(ray_records.key_at(run, trial.checkpoint.path))
            self.go_on_without(run, trials, trial)

    def _forget(
        self, run: Run, behind: Behind, trial: Any, lost: list[Any], newest: Stored
    ) -> None:
        before = ray_records.current(trial)
        left = [r for _, r in sorted(ray_records.kept(trial).items()) if r not in lost]
        now = None if before in lost else before
        stored = next((r for r in left if ray_records.key_of(run, r) == newest.key), None)
        if now is None:
            now = stored
            if now is None and newest.key:
                checkpoint = Checkpoint(f"{run.root}/{newest.key}", self._filesystem)
                now = ray_records.result_of(trial, checkpoint, newest.metrics)
                run.spare(newest.key)
                left = [*left, now]
        ray_records.keep_only(trial, left, now)
        paths, instead = {r.checkpoint.path for r in lost}, now if before in lost else stored
        run.corrections.put(trial.trial_id, ray_records.correction(trial, paths, instead))
        for key in sorted({ray_records.key_of(run, result) for result in lost}):
            logger.warning(
                "%s: checkpoint %s is lost (%s); its newest that is stored is %s",
                trial, key, behind.why_lost(key), newest.key or "none",
            )  # fmt: skip

    def _newest_stored(
        self, run: Run, behind: Behind, directory: str, wait_s: float
    ) -> Stored | None:
        """Of this run; of those before it, if this one has published none; None: not known yet."""
        own = behind.newest_published(directory)
        if own:
            self._asked.pop(directory, None)
            return Stored(own, behind.metrics_of(own))
        asked = self._asked.get(directory) or _ask(run, directory)
        self._asked[directory] = asked
        try:
            found = asked.result(wait_s)
        except FutureTimeoutError:
            return None
        except Exception as error:  # it is asked again
            said = f"{directory}: what is stored cannot be seen now, and is looked for again"
            self._warn(TuneSyncError(f"{said}: {error}"))
            found = None
        del self._asked[directory]
        return found


def _ask(run: Run, directory: str) -> Future[Stored]:
    answer: Future[Stored] = Future()

    def ask() -> None:
        try:
            answer.set_result(_newest_of_earlier(run, directory))
        except BaseException as error:
            time.sleep(AGAIN_S)
            answer.set_exception(error)

    threading.Thread(target=ask, name="tune_sync-lost", daemon=True).start()
    return answer


def _newest_of_earlier(run: Run, directory: str) -> Stored:
    key = run.newest_of_earlier(directory)
    manifest = run.home.committer.manifest(key) if key else None
    return Stored(key, manifest.metrics) if manifest is not None else Stored()
