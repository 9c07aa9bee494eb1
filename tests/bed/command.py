"""Running a system command, with an error that shows what it printed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.bed.errors import BedError

COMMAND_TIMEOUT_S = 60.0


def run(argv: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a command to its end and return its standard output.

    Raises:
        BedError: It failed; the message holds the command and its output.
    """
    done = subprocess.run(argv, text=True, capture_output=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(argv)} exited {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
