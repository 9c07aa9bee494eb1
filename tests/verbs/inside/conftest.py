"""Tests that need an RDMA device: collected in a guest only, where `test_in_guest.py` runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if "TUNE_SYNC_TEST_GUEST" not in os.environ:
    collect_ignore_glob = ["test_*"]
else:
    from tests.verbs.inside.sides import Here, mend_link
    from tune_sync.fastpath.verbs import queue_pair
    from tune_sync.fastpath.verbs.checks import find_port_address
    from tune_sync.fastpath.verbs.device import Device

    @pytest.fixture(scope="session")
    def device() -> Iterator[Device]:
        opened = Device(find_port_address())
        yield opened
        opened.close()

    @pytest.fixture
    def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
        """A device gives up after a second, not after eight."""
        monkeypatch.setattr(queue_pair, "ACK_TIMEOUT", 15)

    @pytest.fixture
    def mended() -> Iterator[None]:
        """What cuts the link leaves it whole."""
        yield
        mend_link()

    @pytest.fixture
    def here(device: Device) -> Iterator[Here]:
        """This side of connections to other processes, which end with the test."""
        with Here(device) as side:
            yield side
