"""How long a required transport may be lost before a report fails. Without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from tune_sync.agents import replicator
from tune_sync.agents.replicator import RayReplicator
from tune_sync.errors import FixCallError, HomeLostError, PeerLostError, TransportMissingError
from tune_sync.spec import Options, Spec


class Lost(RayReplicator):
    """Finds no way. `errors`: why, one try after the other."""

    def __init__(self, *, required: bool, **options: Any) -> None:
        made = Options(transport="tcp", transport_required=required, **options)
        super().__init__(Spec("key", "/root", "exp", "run", None, made), "node", None)  # type: ignore[arg-type]
        self.errors: list[Exception] = []

    def _find_way(self) -> Any:
        raise self.errors.pop(0) if self.errors else PeerLostError("nobody answers at host:1")

    def copy_one(self) -> None:
        self.copy(None, "t/checkpoint_000000", None)  # type: ignore[arg-type]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Monotonic seconds."""
    at = [100.0]
    monkeypatch.setattr(replicator.time, "monotonic", lambda: at[0])
    return at


def test_a_required_transport_that_stays_lost_fails_the_report(now: list[float]) -> None:
    lost = Lost(required=True)
    for _ in range(2):
        with pytest.raises(PeerLostError):
            lost.copy_one()
        now[0] += replicator.PATIENCE_S / 2 - 1
    now[0] += 2
    with pytest.raises(TransportMissingError, match="nobody answers at host:1; nothing was rep"):
        lost.copy_one()
    assert issubclass(TransportMissingError, FixCallError), "no other try would end otherwise"


def test_another_trouble_begins_the_time_anew(now: list[float]) -> None:
    lost = Lost(required=True)
    lost.errors = [PeerLostError("lost"), HomeLostError("it has died")]
    for error in (PeerLostError, HomeLostError, PeerLostError):
        with pytest.raises(error):
            lost.copy_one()
        now[0] += replicator.PATIENCE_S


def test_no_report_waits_for_longer_than_it_may(now: list[float]) -> None:
    lost = Lost(required=True, timeout_s=5.0)
    with pytest.raises(PeerLostError):
        lost.copy_one()
    now[0] += 5
    with pytest.raises(TransportMissingError, match="for 5 s"):
        lost.copy_one()


def test_one_that_is_not_required_is_tried_as_long_as_reports_wait(now: list[float]) -> None:
    lost = Lost(required=False)
    for _ in range(3):
        with pytest.raises(PeerLostError):
            lost.copy_one()
        now[0] += 10 * replicator.PATIENCE_S
