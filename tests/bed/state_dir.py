"""Where a bed keeps its logs and kept homes on the machine, and what dead beds left there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "bed-"
KEPT = "KEPT"  # a file that marks logs of a failure: left for a person to read


def make() -> Path:
    """Make a directory for a new bed, after removing those of beds that were killed."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{PREFIX}*-*"):
        owner = old.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and not (old / KEPT).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
