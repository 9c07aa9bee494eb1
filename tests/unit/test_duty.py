"""What a node's agent does whose driver is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tune_sync.behind.duty import SILENT_S, Step, next_step
from tune_sync.homes.lease import TIDYING, Holder

NOW_S = 1_000_000.0
FAR = Holder("mine", "far", 12, "another machine", "345", NOW_S)
HERE = Holder.here("mine", NOW_S)


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
        pytest.param(replace(FAR, owner=f"{TIDYING}1"), Step.STAY, id="tidied just now"),
    ],
)
def test_the_lease_says_what_is_to_be_done(holder: Holder | None, step: Step) -> None:
    if holder is HERE:  # tests may be collected long before
        holder = Holder.here("mine", NOW_S)
    assert next_step(holder, "mine", NOW_S) is step
