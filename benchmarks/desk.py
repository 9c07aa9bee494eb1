"""How a driver tells a trial what to do: an actor that both know."""

from __future__ import annotations

import asyncio
from typing import Any


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
