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
    send, put_file = RemoteHome._send, RemoteHome.put_file

    def told(self: RemoteHome, key: str, data: memoryview, *args: Any) -> None:
        heard(key, len(data))
        send(self, key, data, *args)

    def told_of_file(self: RemoteHome, key: str, data: memoryview, durable: bool) -> None:
        heard(key, len(data))
        put_file(self, key, data, durable)

    def listen(to_send: Any, to_put: Any) -> None:
        RemoteHome._send, RemoteHome.put_file = to_send, to_put  # type: ignore[method-assign]

    listen(told, told_of_file)
    return lambda: listen(send, put_file)
