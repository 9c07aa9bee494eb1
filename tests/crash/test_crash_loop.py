"""Every promise holds after a crash at any moment."""

from __future__ import annotations

import pytest

from tests.crash.loop import explore
from tests.crash.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_promises_hold_after_a_crash_at_any_change(name: str) -> None:
    assert explore(SCENARIOS[name]) > 50


@pytest.mark.parametrize("name", ["two_ranks", "replace_published", "retry_with_other_names"])
def test_promises_need_no_order_of_ids(name: str) -> None:
    assert explore(SCENARIOS[name], ids_fall=True) > 50


def test_recovery_may_be_cut_off_anywhere() -> None:
    assert explore(SCENARIOS["two_ranks"], crash_recovery=True) > 500


@pytest.mark.slow
@pytest.mark.parametrize("ids_fall", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_recovery_may_be_cut_off_anywhere(name: str, ids_fall: bool) -> None:
    assert explore(SCENARIOS[name], ids_fall=ids_fall, crash_recovery=True) > 500
