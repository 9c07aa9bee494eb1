"""Every promise holds after a crash at any moment."""

from __future__ import annotations

import pytest

from tests.crash.loop import explore
from tests.crash.scenarios import SCENARIOS


@pytest.mark.parametrize("ids_fall", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_promises_hold_after_a_crash_at_any_change(name: str, ids_fall: bool) -> None:
    assert explore(SCENARIOS[name], ids_fall=ids_fall) > 100
