"""The filesystem of one run, as Ray gets it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import pyarrow.fs as pafs


class RunFileSystem(pafs.PyFileSystem):  # type: ignore[misc]
    """`PyFileSystem` over a `SyncHandler`, which makes `report` raise what went wrong late.

    pyarrow drops what the `close` of a file object raises, and the last bytes of a checkpoint can
    fail as late as that. Ray's `Checkpoint(path, filesystem)`, made of the copy before `report`
    returns, asks whether there is a filesystem. That is when the copy is sealed, and when `report`
    raises what went wrong with it. It is also the one proof that the copy has come to its end: of a
    copy that failed half way no `Checkpoint` is made. And it is where a trial's metrics can be seen
    before its driver has them.

    A report begins with a directory for its checkpoint. Those of a copy do not come this way:
    pyarrow makes them by itself, and several checkpoints may be in one.
    """

    def create_dir(self, path: str, *, recursive: bool = True) -> None:
        """Make a directory; what this thread left half way, as a report failed, makes room."""
        self.handler.uploads.drop_left(self.handler.key(str(path)) or "")
        super().create_dir(path, recursive=recursive)

    def __bool__(self) -> bool:
        asking = sys._getframe(1)
        path = _path_of(asking.f_locals.get("self"), self)
        self.handler.barrier(path, _metrics_of(asking) if path else None)
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # What Ray's search saved gives the filesystem of the run that it began in to trials which a
        # restore makes anew. That run is over, so they get that of the run which goes on here.
        return RunFileSystem, (self.handler.going_on(),)


def _path_of(asking: Any, filesystem: RunFileSystem) -> str:
    """The path of a `Checkpoint` on `filesystem` that is just being made; "" of anything else."""
    fields = getattr(asking, "__dict__", {})
    # Ray sets these two, asks, and goes on with the third.
    begun = fields.get("filesystem") is filesystem and "_uuid" not in fields
    return str(fields.get("path", "")) if begun else ""


def _metrics_of(making: FrameType) -> Mapping[str, Any] | None:
    """What is reported with the `Checkpoint` that is just being made; None if it cannot be seen.

    Ray's `report`, and its `save` of a class, have it in `metrics`, and call what makes it.
    """
    persisting = making.f_back
    reporting = persisting.f_back if persisting is not None else None
    metrics = reporting.f_locals.get("metrics") if reporting is not None else None
    return metrics if isinstance(metrics, Mapping) else None
