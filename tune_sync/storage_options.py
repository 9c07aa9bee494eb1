"""`SyncConfig.storage_options` of this process's runs: never in a file, a log or a pickle."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

_KEPT: dict[str, dict[str, Any]] = {}
_KEPT_LOCK = threading.Lock()


def keep(key: str, options: Mapping[str, Any] | None) -> None:
    """Remember the options of the handler `key` in this process."""
    if options:
        with _KEPT_LOCK:
            _KEPT[key] = dict(options)


def forget(key: str) -> None:
    """The handler `key` is gone. May be called from any thread, at any time: takes no lock."""
    _KEPT.pop(key, None)


def kept(key: str) -> dict[str, Any] | None:
    """The options of the handler `key`; None if this process does not know any."""
    with _KEPT_LOCK:
        return _KEPT.get(key)
