"""What transports are called: in the configuration, in logs, in status and in metrics."""

from __future__ import annotations

AUTO = "auto"
RDMA = "rdma"
TCP = "tcp"
# Always there where Ray is, and needs nothing of this package: what is left when all else is not.
OBJECT_STORE = "object_store"
# The best first.
NAMES = (RDMA, TCP, OBJECT_STORE)
