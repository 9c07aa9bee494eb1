"""Which files are stored: include, exclude, and names of files in the making. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from tune_sync.layout import Kind, Place, checkpoint_name
from tune_sync.spec import Options

# Names that Ray, editors and libraries use for files in the making; never sent as artifacts.
TEMPORARY_NAMES = ("checkpoint_tmp*", "save_to_object*", ".tmp*", "*.lock", "*.tmp")


def wanted(place: Place, key: str, options: Options, *, is_driver: bool) -> bool:
    """Whether a file or directory is to be stored.

    `exclude` holds for artifacts and for what is inside checkpoints, `include` and the temporary
    names for artifacts only: a pattern for plots must not cost a checkpoint its files.

    Args:
        place: What it is.
        key: Relative to the experiment directory.
        options: The user's settings.
        is_driver: The driver writes it: one of Ray's logs, which a restore needs.
    """
    relative = key.removeprefix(place.trial + "/") if place.trial else key
    if place.kind is Kind.CHECKPOINT:
        return not place.inner or not matches(relative, options.exclude)
    if place.kind is not Kind.TRIAL_FILE or is_driver:
        return True
    if matches(relative, TEMPORARY_NAMES) or matches(relative, options.exclude):
        return False
    return not options.include or matches(relative, options.include)


def leaves_nothing(pattern: str) -> bool:
    """Whether every file of every checkpoint matches a pattern."""
    return matches(f"{checkpoint_name(0)}/ANY", [pattern]) and matches(
        f"{checkpoint_name(999_999)}/other.file", [pattern]
    )


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a glob pattern matches `path` or a directory above it; one without "/" any name."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(
        fnmatch.fnmatchcase(candidate, pattern.rstrip("/"))
        for pattern in patterns
        for candidate in (*above, *(parts if "/" not in pattern.rstrip("/") else ()))
    )
