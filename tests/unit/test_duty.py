"""What a node's agent does whose driver is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tune_sync.behind.duty import SILENT_S, Step, check_dead, next_step
from tune_sync.errors import HomeLostError, LeaseHeldError
from tune_sync.homes.lease import LEASE_TTL_S, TIDYING, Holder

NOW_S = 1_000_000.0
FAR = Holder("mine", "far", 12, "another machine", "345", NOW_S)
HERE = Holder.here("mine", NOW_S)
TIDIED, TIDIED_HERE = (replace(holder, owner=f"{TIDYING}1") for holder in (FAR, HERE))


@pytest.mark.parametrize("kept_bytes", [0, 1, 100, -1])
def test_half_of_a_lease_says_nothing_and_nothing_is_removed_by_it(kept_bytes: int) -> None:
    whole = FAR.left.to_json().encode()
    assert next_step(whole, "mine", NOW_S) is Step.SEND_ALL
    assert next_step(whole[:kept_bytes], "mine", NOW_S) is Step.STAY


def test_what_is_no_lease_says_nothing() -> None:
    for body in (b"null", b"{}", b"\xff", b"[]", b'{"owner": "other"}'):
        assert next_step(body, "mine", NOW_S) is Step.STAY


@pytest.mark.parametrize(
    ("holder", "step"),
    [
        pytest.param(None, Step.END, id="released"),
        pytest.param(FAR, Step.STAY, id="alive elsewhere"),
        pytest.param(HERE, Step.STAY, id="alive here"),
        pytest.param(replace(FAR, heartbeat_s=NOW_S - SILENT_S + 1), Step.STAY, id="slow"),
        pytest.param(replace(FAR, heartbeat_s=NOW_S - SILENT_S), Step.SEND_ALL, id="silent"),
        pytest.param(replace(HERE, process_start="1"), Step.SEND_ALL, id="died here"),
        pytest.param(HERE.left, Step.SEND_ALL, id="left, and its process lives"),
        pytest.param(FAR.left, Step.SEND_ALL, id="left elsewhere"),
        pytest.param(replace(FAR, owner="other"), Step.LEAVE, id="taken over"),
        pytest.param(TIDIED, Step.STAY, id="tidied just now"),
        pytest.param(replace(TIDIED, heartbeat_s=NOW_S - SILENT_S), Step.LEAVE, id="half tidied"),
        pytest.param(replace(TIDIED_HERE, process_start="1"), Step.LEAVE, id="half tidied here"),
        pytest.param(TIDIED.left, Step.LEAVE, id="given back to one that was half tidied"),
    ],
)
def test_the_lease_says_what_is_to_be_done(holder: Holder | None, step: Step) -> None:
    if holder is HERE:  # tests may be collected long before
        holder = Holder.here("mine", NOW_S)
    lease = holder.to_json().encode() if holder is not None else None
    assert next_step(lease, "mine", NOW_S) is step


@pytest.mark.parametrize("kept_bytes", [0, 1, 100, -1])
def test_by_half_of_a_lease_no_run_is_taken_for_dead(kept_bytes: int) -> None:
    whole = FAR.to_json().encode()
    with pytest.raises(LeaseHeldError, match="in use by a live run"):
        check_dead("/exp", whole, NOW_S)
    with pytest.raises(HomeLostError, match="the lease of /exp is being replaced"):
        check_dead("/exp", whole[:kept_bytes], NOW_S)


@pytest.mark.parametrize(
    "holder", [None, FAR.left, replace(FAR, heartbeat_s=NOW_S - LEASE_TTL_S), HERE.left]
)
def test_a_run_that_left_its_lease_or_is_silent_is_dead(holder: Holder | None) -> None:
    check_dead("/exp", holder.to_json().encode() if holder is not None else None, NOW_S)
