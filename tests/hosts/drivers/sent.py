"""What this process sends to the home agent, counted without changing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tune_sync.agents.remote_home import RemoteHome


@dataclass
class Sent:
    """How many calls carried data, and how many bytes of it."""

    count: int = 0
    size_bytes: int = 0


@contextmanager
def count_sent() -> Iterator[Sent]:
    """Count what is sent inside of this."""
    sent = Sent()

    def count(key: str, size_bytes: int) -> None:
        sent.count += 1
        sent.size_bytes += size_bytes

    undo = _listen(count)
    try:
        yield sent
    finally:
        undo()


def note_sent(file: Path) -> None:
    """From now on add a line with the size of whatever is sent to `file`."""

    def note(key: str, size_bytes: int) -> None:
        with file.open("a") as lines:
            lines.write(f"{size_bytes}\n")

    _listen(note)


def _listen(heard: Callable[[str, int], None]) -> Callable[[], None]:
    send = RemoteHome._send

    def told(self: RemoteHome, key: str, data: memoryview, *args: Any) -> None:
        heard(key, len(data))
        send(self, key, data, *args)

    RemoteHome._send = told  # type: ignore[method-assign]

    def undo() -> None:
        RemoteHome._send = send  # type: ignore[method-assign]

    return undo
