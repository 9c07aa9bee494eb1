"""Checks of single fields of `SyncConfig`; their errors name the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tune_sync.errors import ConfigError


def check_seconds(name: str, value: Any, most: float) -> None:
    """Raise ConfigError if it is no time above zero, up to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"SyncConfig({name}={value!r}): seconds above zero are needed")
    if value > most:
        raise ConfigError(f"SyncConfig({name}={value!r}): give {most:.0f} seconds at most")


def check_flag(name: str, value: Any) -> None:
    """Raise ConfigError if it is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"SyncConfig({name}={value!r}): True or False is needed")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ConfigError if it is none of these."""
    if value not in choices:
        shown = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"SyncConfig({name}={value!r}): {shown} is needed")


def check_count(name: str, value: Any, what: str) -> None:
    """Raise ConfigError if it is given, and no whole number above zero."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or value <= 0
    ):  # fmt: skip
        raise ConfigError(f"SyncConfig({name}={value!r}): {what} above zero is needed")


def check_patterns(name: str, value: Any) -> tuple[str, ...]:
    """The same as a tuple; ConfigError if they are no patterns of relative paths."""
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(pattern, str) for pattern in value):
        raise ConfigError(f'SyncConfig({name}={value!r}): a list of patterns is needed: ["*.tmp"]')
    for pattern in value:
        if not pattern or pattern.startswith("/"):
            raise ConfigError(
                f"SyncConfig({name}=...): {pattern!r} has to be relative to the trial directory"
            )
    return tuple(value)


def own_syncers(given: Any) -> str:
    """What a syncer of the user's own may be, for the error of something that is none."""
    made = f"{given.__name__}() of the class {given.__name__}, " if isinstance(given, type) else ""
    return (
        f"one of your own is {made}a CommandSyncer(...), a CallbackSyncer(...) of functions, or an "
        "instance of a subclass of Syncer"
    )
