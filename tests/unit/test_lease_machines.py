"""How old a lease is, where hosts cannot be told apart."""

from __future__ import annotations

import time

import pytest

from tune_sync.homes import lease as lease_module
from tune_sync.homes.lease import Holder

NOW_S = 1000.0


def test_hosts_without_a_name_do_not_go_by_how_long_they_are_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_module, "_machine", lambda: "")
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    holder = Holder("other", "far", 12, "", "345", NOW_S + 5.0, up_s - 3600.0)
    assert holder.age_s(NOW_S) == 0.0
    assert holder.ahead_s(NOW_S) == 5.0
