"""Every promise holds in a bucket after a crash at any moment."""

from __future__ import annotations

import pytest

from tests.crash_buckets.loop import explore
from tests.crash_buckets.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_promises_hold_after_a_crash_at_any_change(name: str) -> None:
    assert explore(SCENARIOS[name]) > 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_promises_need_no_etags_and_no_conditional_put(name: str) -> None:
    assert explore(SCENARIOS[name], etags=False, conditional_put=False) > 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_recovery_may_be_cut_off_anywhere(name: str) -> None:
    assert explore(SCENARIOS[name], crash_recovery=True) > 60
