"""The filesystem of one run, as Ray gets it."""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs


class RunFileSystem(pafs.PyFileSystem):  # type: ignore[misc]
    """`PyFileSystem` over a `SyncHandler`, which makes `report` raise what went wrong late.

    pyarrow drops what the `close` of a file object raises, and the last bytes of a checkpoint can
    fail as late as that. Ray's `Checkpoint(path, filesystem)`, made of the copy before `report`
    returns, asks whether there is a filesystem. That is when the copy is sealed, and when `report`
    raises what went wrong with it.
    """

    def __bool__(self) -> bool:
        self.handler.barrier()
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return RunFileSystem, (self.handler,)
