"""Syncers as users write them. The driver's process has them; trials cannot even import them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tune_sync import CommandSyncer, Syncer

COPY_INTO = """sh -c 'mkdir -p "$2" && cp -R "$1/." "$2"' sh {source} {target}"""


def copying(**settings: Any) -> CommandSyncer:
    """Copies with what every machine has."""
    return CommandSyncer(COPY_INTO, COPY_INTO, "rm -r {target}", **settings)


class PlainSyncer(Syncer):
    """Only the abstract methods, which return when all is done; `__init__` is not called."""

    def __init__(self) -> None:
        """Nothing."""

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        shutil.copytree(local_dir, remote_dir, dirs_exist_ok=True)
        return True

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        shutil.copytree(remote_dir, local_dir, dirs_exist_ok=True)
        return True

    def delete(self, remote_dir: str) -> bool:
        shutil.rmtree(remote_dir)
        return True


class DriversOwn(PlainSyncer):
    """Notes in which processes it is unpickled.

    Args:
        notes: A file.
    """

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with open(self.notes, "a") as file:
            file.write(f"{os.getpid()}\n")


def refuse_checkpoints(source: str, target: str) -> None:
    """An upload to `<top>/far/...` that fails for checkpoints, while there is no `<top>/room`."""
    if "checkpoint_" in target and not Path(target.split("/far/")[0], "room").exists():
        raise OSError("507 Insufficient Storage")
    shutil.copytree(source, target, dirs_exist_ok=True)
