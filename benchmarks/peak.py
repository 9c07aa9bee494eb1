"""How much memory this process used at its highest."""

from __future__ import annotations

from pathlib import Path


def forget_peak() -> None:
    """From now on, `peak_bytes` is about what comes."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most that was resident since `forget_peak`."""
    return _status("VmHWM:")


def now_bytes() -> int:
    """What is resident now."""
    return _status("VmRSS:")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)
