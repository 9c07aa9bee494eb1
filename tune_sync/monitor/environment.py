"""What the environment says of the Ray cluster that `tune-sync status` asks."""

from __future__ import annotations

import os

# Ray takes it in the place of what it is called with.
ADDRESS = "RAY_ADDRESS"


def cluster_address() -> str:
    """Ray's address; "" if it is to look for a cluster of this machine."""
    return os.environ.get(ADDRESS, "")
