"""What trainables of these tests have in common."""

from __future__ import annotations

from pathlib import Path

from ray import tune


def first_step() -> int:
    """The step after that of the checkpoint that a trial goes on from; its file is `step`."""
    found = tune.get_checkpoint()
    if found is None:
        return 0
    with found.as_directory() as folder:
        return int(Path(folder, "step").read_text()) + 1
