"""Hears of each checkpoint before the user's own callbacks do.

Ray tells one callback after the other of a checkpoint, and none of the rest once one of them
raises. Then it does not register it. A user's callback may open what it is told of, or raise: so
what was reported is placed before, and only registering it is prepared by our last callback.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow.fs as pafs
import ray.train
import ray.tune

from tune_sync import layout
from tune_sync.checkpoint import Checkpoint
from tune_sync.errors import AskedTwiceError
from tune_sync.manifest import warn_of_conflicts
from tune_sync.metrics import plain_metrics
from tune_sync.restoring import ray_records

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


class OurCallback(ray.tune.Callback):  # type: ignore[misc]
    """One that `RunConfig` adds to those of the user's."""


class PlacesFirst(OurCallback):
    """Stands before the user's own callbacks.

    Args:
        last: The callback that stands behind them; it has a method `place`.
    """

    def __init__(self, last: Any) -> None:
        self._last = last

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """Have a checkpoint placed. Raises as `Hearing.place`."""
        self._last.place(trial, checkpoint)


def around(callbacks: Sequence[Any], last: OurCallback) -> list[Any]:
    """The user's own callbacks, and ours around them, in the place of what is ours there.

    Ray saves the state of callbacks by their positions. So where an older version put none of ours
    in front, there is none in a restore either.
    """
    others = [each for each in callbacks if not isinstance(each, OurCallback)]
    ours = [each for each in callbacks if isinstance(each, OurCallback)]
    is_new = not ours or isinstance(ours[0], PlacesFirst)
    return [*([PlacesFirst(last)] if is_new else ()), *others, last]


class Hearing:
    """What one run hears of checkpoints. For the thread of Ray's control loop.

    Args:
        filesystem: The run's.
    """

    def __init__(self, filesystem: pafs.PyFileSystem) -> None:
        self._filesystem, self._handler = filesystem, filesystem.handler
        self._heard: Any = None  # the checkpoint that Ray tells of now

    def place(self, trial: Any, checkpoint: Any) -> None:
        """Publish a checkpoint, once, or refuse it: Ray does not register one that raises here.

        Its number is set aside: Ray does not count what it does not register.
        """
        is_placed, self._heard = self._heard is checkpoint, checkpoint
        if is_placed or checkpoint.filesystem != self._filesystem:
            return
        number = ray_records.own_number(trial, checkpoint)
        try:
            self.publish(checkpoint, ray_records.last_metrics(trial))
        except AskedTwiceError:
            raise
        except Exception as error:
            self._handler.start().refused[checkpoint.path] = error
            ray_records.reserve(trial, number)
            raise
        ray_records.reserve(trial, number)

    def publish(self, checkpoint: Any, metrics: dict[str, Any]) -> None:
        """Publish a checkpoint. Raises as `SyncHandler.publish`."""
        path = checkpoint.path
        warn_of_conflicts(path, self._handler.publish(path, plain_metrics(metrics)))
        # Every process that opens it gets a directory of its own: with Ray's class, a second
        # reader on a node downloads over the files that the first one is reading.
        if type(checkpoint) in (ray.tune.Checkpoint, ray.train.Checkpoint):
            checkpoint.__class__ = Checkpoint

    def saved(self, trial: Any) -> None:
        """Ray has processed a save: publish it, if a callback before ours has kept it from us."""
        heard, self._heard = self._heard, None
        run, directory = self._handler.run, ray_records.directory_of(trial)
        if heard is not None or run is None:
            return
        left = self._handler.uploads.newest_left(directory)
        if layout.by_age(left) <= layout.by_age(run.latest(directory)):
            return
        path = f"{self._handler.experiment_root}/{left}"
        try:
            self.place(trial, Checkpoint(path, self._filesystem))
            logger.warning("a callback raised as Ray told it of %s: Ray does not know it", path)
        except Exception as error:  # named by `refused`, and at the end
            logger.error("%s is not stored, and fit() will fail: %s", path, error)
        self._heard = None
