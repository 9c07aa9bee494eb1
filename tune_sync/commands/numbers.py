"""Numbers as people write them on a command line."""

from __future__ import annotations

import argparse
import math
import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def size_bytes(text: str) -> int:
    """Bytes from `4096`, `64KiB`, `4M` (both of 1024) or `1GB` (of 1000)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it as 4MiB or 1GB")
    number, unit, binary = float(found[1]), (found[2] or "").upper(), found[3]
    base = 1000 if unit and not binary and text.strip().upper().endswith("B") else 1024
    return _at_least_one(math.floor(number * base ** _POWERS[unit]), text)


def count(text: str) -> int:
    """A whole number from `8`, `7e9` or `1.5e9`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number; write it as 8 or 7e9")
    return _at_least_one(int(number), text)


def seconds(text: str) -> float:
    """Seconds above zero."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} are no seconds; write them as 10 or 0.5")
    return number


def readable(number_bytes: float) -> str:
    """Bytes for people: `28.2 GB`."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while number_bytes >= 1000 and len(units) > 1:
        number_bytes /= 1000
        units.pop(0)
    return f"{number_bytes:.0f} B" if units[0] == "B" else f"{number_bytes:.1f} {units[0]}"


def _at_least_one(number: int, text: str) -> int:
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is below one")
    return number
