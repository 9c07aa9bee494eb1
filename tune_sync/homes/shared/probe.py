"""Whether other nodes see the same directory: marks that both sides leave, and look for.

The driver's node makes a `Mark`. A process of each other node looks for it with `look`, and leaves
an answer, which has to arrive. No Ray here; `agents.probe` brings the two together.
"""

from __future__ import annotations

import getpass
import os
import uuid
from pathlib import Path

from tune_sync import layout
from tune_sync.homes import disk

NONCE = "nonce"
# As much as a block, so that a full disk or quota shows.
ANSWER_BYTES = 4096


class Mark:
    """What the driver leaves in an experiment directory, to be found by other nodes.

    Args:
        root: The experiment directory; it is there on this node.
    """

    def __init__(self, root: str) -> None:
        self._nonce = uuid.uuid4().hex
        self.path = Path(root, layout.INTERNAL_DIR, f"probe-{self._nonce}")

    def __enter__(self) -> Mark:
        self.path.mkdir()
        (self.path / NONCE).write_text(self._nonce)
        return self

    def __exit__(self, *_: object) -> None:
        disk.remove_tree(self.path)

    def has_answer(self, name: str, patience_s: float = disk.VISIBLE_WITHIN_S) -> bool:
        """Whether an answer of that name arrives, whole."""
        answer = self.path / name
        return disk.wait_until(lambda: _read(answer) == _answer(self._nonce), patience_s)


def look(mark: str, name: str, patience_s: float = disk.VISIBLE_WITHIN_S) -> str:
    """Find a mark on this node and answer it.

    Args:
        mark: `Mark.path`.
        name: Of the answer.
        patience_s: How long to wait until the mark is seen.

    Returns:
        What is wrong, for a message that names the node; "" if nothing is.
    """
    path = Path(mark)
    nonce = path.name.removeprefix("probe-")
    try:
        if not disk.wait_until(lambda: _read(path / NONCE) == nonce.encode(), patience_s):
            return _why_unseen(path)
        with open(path / name, "xb") as file:
            file.write(_answer(nonce))
            file.flush()
            disk.fsync(file.fileno(), path / name)
    except OSError as error:
        return f"{_user()} cannot write there: {error}"
    return ""


def _answer(nonce: str) -> bytes:
    return nonce.encode().ljust(ANSWER_BYTES)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        disk.refresh(path)
        return b""


def _why_unseen(mark: Path) -> str:
    """Names the topmost of the directories that is not there."""
    experiment = mark.parent.parent
    for place in (experiment.parent, experiment):
        if not place.is_dir():
            above = "" if place.parent.is_dir() else f", nor {place.parent}"
            return f"there is no directory {place}{above}: nothing is mounted, or something else"
    return "another directory is at that path: it does not hold what the driver has written"


def _user() -> str:
    try:
        return f"user {getpass.getuser()} (uid {os.getuid()})"
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
