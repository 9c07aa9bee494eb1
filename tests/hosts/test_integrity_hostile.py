"""Whatever another node asks of the home agent, it keeps to its experiment and its staging."""

from __future__ import annotations

import pytest

from tests.bed import Cluster

pytestmark = pytest.mark.hosts

# Each says by its class what was wrong with the call.
NAMED = {"PathRefusedError", "ImmutableError", "DamagedError", "NotWholeError"}


@pytest.mark.lowest
def test_hostile_calls_are_refused_by_a_named_error_and_change_nothing(cluster: Cluster) -> None:
    found = cluster.drive("head", "tests/hosts/drivers/hostile.py")
    assert len(found["errors"]) > 40
    assert {what: e for what, e in found["errors"].items() if e not in NAMED} == {}
    assert found["errors"]["write with a wrong digest"] == "DamagedError"
    assert found["errors"]["verb not on the list"] == "PathRefusedError"
    assert found["errors"]["write in no experiment"] == "PathRefusedError"
    assert set(found["seals"]) <= {"DamagedError", "PathRefusedError", "NotWholeError"}
    assert found["changed"] == []
    assert not found["canary"], "something that was received was unpickled"
    assert found["outside"] == "safe"
    assert found["good"] == "good"
