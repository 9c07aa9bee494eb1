"""`exclude` for syncers whose commands or functions know nothing of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tune_sync.filters import matches
from tune_sync.transfer.tree import scan


@contextmanager
def chosen(source: str, exclude: Sequence[str] | None) -> Iterator[str]:
    """`source`; or, if something is excluded, a directory of links to the rest of it.

    Raises:
        FileNotFoundError, NotADirectoryError: `source` is no directory.
    """
    if not Path(source).is_dir():
        raise FileNotFoundError(f"{source} is not a directory; nothing was sent")
    if not exclude:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="tune_sync-") as made:
        tree = scan(Path(source))
        for directory in tree.directories:
            if not matches(directory, exclude):
                Path(made, directory).mkdir(parents=True, exist_ok=True)
        for file in tree.files:
            if not matches(file.path, exclude):
                link_or_copy(file.source, Path(made, file.path))
        yield made


def fetch_chosen(fetch: Callable[[str], None], target: str, exclude: Sequence[str] | None) -> None:
    """Call `fetch` for a directory, and have what is not excluded in `target`, which is made."""
    Path(target).mkdir(parents=True, exist_ok=True)
    if not exclude:
        fetch(target)
        return
    with tempfile.TemporaryDirectory(prefix="tune_sync-") as made:
        fetch(made)

        def left_out(here: str, names: list[str]) -> list[str]:
            inner = {name: Path(here, name).relative_to(made).as_posix() for name in names}
            return [name for name in names if matches(inner[name], exclude)]

        shutil.copytree(made, target, ignore=left_out, dirs_exist_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that nobody writes into; a copy where there are no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
