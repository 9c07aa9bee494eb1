"""How much is on its way, as people read it."""

from __future__ import annotations

import math


def checkpoints(count: int, size_bytes: int) -> str:
    """`1 checkpoint (12 kB)`, `2 checkpoints (7 MB)`."""
    # A byte is not nothing.
    megabytes, kilobytes = size_bytes / 1e6, math.ceil(size_bytes / 1e3)
    size = f"{megabytes:.0f} MB" if kilobytes >= 1000 else f"{kilobytes} kB"
    return f"{count} checkpoint{'' if count == 1 else 's'} ({size})"


def on_their_way(count: int, size_bytes: int) -> str:
    """That so many are sent just now."""
    said = checkpoints(count, size_bytes)
    return f"{said} is on its way" if count == 1 else f"{said} are on their way"
