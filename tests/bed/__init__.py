"""A test bed of isolated Ray hosts on one Linux machine.

    with Cluster(worker_count=2) as cluster:
        result = cluster.drive("head", "tests/drivers/search.py", timeout_s=120)
        cluster.kill("w1")

Start reading at ``cluster.py``; what one host is made of is in ``host.py``.
"""

from tests.bed.cluster import Cluster
from tests.bed.errors import BedError, DriverError
from tests.bed.tree import tree_digest

__all__ = ["BedError", "Cluster", "DriverError", "tree_digest"]
