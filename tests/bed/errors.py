"""What can go wrong in the bed itself, apart from the code under test."""

from __future__ import annotations


class BedError(RuntimeError):
    """The bed cannot do what was asked (a tool is missing, a host did not start, ...)."""


class DriverError(BedError):
    """A driver script failed, ran out of time, or printed no result.

    Attributes:
        output: Everything the script printed.
        returncode: Its exit status; None when it was stopped for time.
    """

    def __init__(self, message: str, output: str = "", returncode: int | None = None) -> None:
        super().__init__(message)
        self.output = output
        self.returncode = returncode
