"""What a trial reported, as plain data that JSON holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MOST_LEVELS = 16
_LEFT_OUT = "config"  # what was asked of the trial; it may be large, and hold anything


def plain_metrics(result: Mapping[Any, Any]) -> dict[str, Any]:
    """A result without its `config` and whatever is not plain data.

    Numbers of NumPy become numbers; tuples become lists; keys become strings.
    """
    kept = {key: value for key, value in result.items() if key != _LEFT_OUT}
    return dict(_items(kept, MOST_LEVELS))


class _NotPlainError(Exception):
    pass


def _items(found: Mapping[Any, Any], levels: int) -> list[tuple[str, Any]]:
    plain = []
    for key, value in found.items():
        try:
            plain.append((str(key), _plain(value, levels)))
        except _NotPlainError:
            continue
    return plain


def _plain(value: Any, levels: int) -> Any:
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        value = value.item()
    if isinstance(value, str):
        return str(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping) and levels:
        return dict(_items(value, levels - 1))
    if isinstance(value, (list, tuple)) and levels:
        return [_plain(item, levels - 1) for item in value]
    raise _NotPlainError
