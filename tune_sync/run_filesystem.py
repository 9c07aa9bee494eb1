"""The filesystem of one run, as Ray gets it."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow.fs as pafs


class RunFileSystem(pafs.PyFileSystem):  # type: ignore[misc]
    """`PyFileSystem` over a `SyncHandler`, which makes `report` raise what went wrong late.

    pyarrow drops what the `close` of a file object raises, and the last bytes of a checkpoint can
    fail as late as that. Ray's `Checkpoint(path, filesystem)`, made of the copy before `report`
    returns, asks whether there is a filesystem. That is when the copy is sealed, and when `report`
    raises what went wrong with it. It is also the one proof that the copy has come to its end: of a
    copy that failed half way no `Checkpoint` is made.
    """

    def __bool__(self) -> bool:
        self.handler.barrier(_path_of(sys._getframe(1).f_locals.get("self"), self))
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return RunFileSystem, (self.handler,)


def _path_of(asking: Any, filesystem: RunFileSystem) -> str:
    """The path of a `Checkpoint` on `filesystem` that is just being made; "" of anything else."""
    fields = getattr(asking, "__dict__", {})
    # Ray sets these two, asks, and goes on with the third.
    begun = fields.get("filesystem") is filesystem and "_uuid" not in fields
    return str(fields.get("path", "")) if begun else ""
