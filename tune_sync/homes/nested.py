"""Experiments in one another: the outer one would move, delete and sweep what is the inner one's.

Only a new one is refused. All looks are bounded.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tune_sync import layout
from tune_sync.errors import ConfigError

# A name has few parts; and what is there may be a large tree of somebody else's.
LEVELS_COUNT = 3
LOOKED_AT_COUNT = 1000
OR_REMOVE_IT = ", or remove that one if it holds nothing"


def refuse_nested(root: Path, setting: str) -> None:
    """Raise ConfigError if an experiment is above or below `root`, a new one; names that.

    Args:
        root: Its directory, which need not be there.
        setting: What names another directory, for the message.
    """
    for above in root.parents:
        if _is_experiment(above):
            raise ConfigError(
                f"{root} is inside of {above}, which is an experiment; choose another {setting}"
                f"{OR_REMOVE_IT}"
            )
    for below in itertools.islice(_below(root), LOOKED_AT_COUNT):
        if _is_experiment(below):
            raise ConfigError(
                f"{root} is around {below}, which is an experiment; choose another {setting}"
                f"{OR_REMOVE_IT}"
            )


def experiments_near(root: Path) -> Iterator[Path]:
    """Those above `root`, then those below."""
    below = itertools.islice(_below(root), LOOKED_AT_COUNT)
    return filter(_is_experiment, itertools.chain(root.parents, below))


def _is_experiment(directory: Path) -> bool:
    with suppress(OSError):  # nobody here may look: then it is none of this user's
        return (directory / layout.FORMAT_KEY).is_file()
    return False


def _below(root: Path) -> Iterator[Path]:
    """Directories below, a level at a time. Links are not followed: they may lead anywhere."""
    level = [root]
    for _ in range(LEVELS_COUNT):
        inner: list[Path] = []
        for directory in level:
            with suppress(OSError), os.scandir(directory) as entries:
                for entry in itertools.islice(entries, LOOKED_AT_COUNT):
                    if entry.name != layout.INTERNAL_DIR and entry.is_dir(follow_symlinks=False):
                        inner.append(Path(entry.path))
                        yield inner[-1]
        level = inner
