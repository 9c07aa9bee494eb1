"""How a driver tells a trial what to do, and what that trial writes through."""

from __future__ import annotations

import asyncio
from typing import Any

from ray import tune

from tune_sync.filesystem import SyncHandler


class Desk:
    """Where the trial gets its orders and leaves its answers, without polling."""

    def __init__(self) -> None:
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order to the trial; returns its answer."""
        await self._orders.put(order)
        return await self._answers.get()

    async def next(self) -> dict[str, Any]:
        """The trial's next order."""
        return await self._orders.get()

    async def done(self, answer: dict[str, Any]) -> None:
        """The trial's answer to it."""
        await self._answers.put(answer)


def trial_handler() -> SyncHandler:
    """What the trial that asks writes through."""
    storage: Any = tune.get_context().get_storage()
    handler: SyncHandler = storage.storage_filesystem.handler
    return handler
