"""For processes with this directory first in PYTHONPATH: tensorboardX does without PyTorch.

Ray's logger loads tensorboardX in every driver, and that loads PyTorch where it is installed, only
to know a tensor when it sees one: two seconds of processor time each. All others find it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType, ModuleType


class NotForTensorboardX:
    """Finds nothing, and tells tensorboardX that there is no PyTorch."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name != "torch":
            return
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and "importlib" in caller.f_code.co_filename:
            caller = caller.f_back
        if caller is not None and caller.f_globals.get("__name__", "").startswith("tensorboardX"):
            raise ModuleNotFoundError("not for tensorboardX", name=name)


sys.meta_path.insert(0, NotForTensorboardX())
