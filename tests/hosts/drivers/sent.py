"""Counts what a trial sends to the home agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tune_sync.agents.remote_home import RemoteHome


@dataclass
class Sent:
    """How many calls carried data, and how many bytes of it."""

    count: int = 0
    size_bytes: int = 0


@contextmanager
def count_sent() -> Iterator[Sent]:
    """Count calls of this process that carry data, without changing them."""
    sent = Sent()
    send = RemoteHome._send

    def counted(self: RemoteHome, key: str, data: memoryview, *args: Any) -> None:
        sent.count += 1
        sent.size_bytes += len(data)
        send(self, key, data, *args)

    RemoteHome._send = counted  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        RemoteHome._send = send  # type: ignore[method-assign]
