"""What transports are called: in the configuration, in logs, in status and in metrics."""

from __future__ import annotations

AUTO = "auto"
RDMA = "rdma"
# Several cards at once. Only who names it gets it.
MOONCAKE = "mooncake"
TCP = "tcp"
# Always there where Ray is, and needs nothing of this package: what is left when all else is not.
OBJECT_STORE = "object_store"
# The best first.
NAMES = (RDMA, MOONCAKE, TCP, OBJECT_STORE)
# Memory is written and read by network cards.
BY_CARD = frozenset({RDMA, MOONCAKE})
