"""What a node's agent does whose driver is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tune_sync.behind.duty import SILENT_S, Step, next_step
from tune_sync.homes.lease import TIDYING, Holder

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
