"""What of Ray's saved state is changed, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tune_sync.errors import DamagedError
from tune_sync.homes.state_records import (
    Correction,
    Corrections,
    NotYetError,
    is_torn,
    with_records,
)


def state(*trials: tuple[str, str]) -> dict[str, Any]:
    pairs = [
        [json.dumps({"trial_id": i, "status": s}), json.dumps({"checkpoint_manager": 0, "x": i})]
        for i, s in trials
    ]
    return {"trial_data": pairs, "runner_data": {"best": float("inf")}, "stats": {}}


def test_only_the_records_that_are_given_change() -> None:
    before = state(("a", "RUNNING"), ("b", "PENDING"))
    after = json.loads(with_records(json.dumps(before).encode(), {"a": {"value": "1"}}, (), {}))
    assert json.loads(after["trial_data"][0].pop()) == {
        "checkpoint_manager": {"value": "1"},
        "x": "a",
    }
    before["trial_data"][0].pop()
    assert after == before


@pytest.mark.parametrize("status", ["TERMINATED", "ERROR"])
def test_a_trial_has_not_ended_before_its_last_checkpoint_is_there(status: str) -> None:
    body = json.dumps(state(("a", status), ("b", "RUNNING"))).encode()
    with pytest.raises(NotYetError) as raised:
        with_records(body, {}, ("a", "b"), {})
    assert raised.value.trial_ids == ["a"]
    assert with_records(body, {}, ("b",), {})


@pytest.mark.parametrize(
    "body", [b"{}", b'{"trial_data": [["{}", "{}"]]}', b'{"trial_data": [[]]}']
)
def test_a_state_of_another_shape_is_refused_with_the_way_out(body: bytes) -> None:
    with pytest.raises(DamagedError, match="sync_on_checkpoint"):
        with_records(body, {}, (), {})


def test_a_state_that_ray_changed_while_it_was_copied_is_torn() -> None:
    body = json.dumps(state(("a", "RUNNING"))).encode()
    assert not is_torn(body)
    assert all(is_torn(body[:size]) for size in (0, 1, len(body) - 1))


@pytest.mark.parametrize("is_outdated", [True, False])
def test_a_record_is_corrected_only_where_it_is_outdated(is_outdated: bool) -> None:
    body = json.dumps(state(("a", "RUNNING"), ("b", "RUNNING"))).encode()
    seen: list[str] = []

    def rewrite(noted: str, lost: frozenset[str], instead: Any) -> Any:
        seen.append(noted)
        assert (lost, instead) == ({"gone"}, "newest")
        return {"value": "1"} if is_outdated else None

    correction = Correction(frozenset({"gone"}), frozenset(), rewrite, "newest")
    after = json.loads(with_records(body, {}, (), {"a": correction}))
    records = [json.loads(pair[1])["checkpoint_manager"] for pair in after["trial_data"]]
    assert records == [{"value": "1"} if is_outdated else 0, 0]
    assert [json.loads(noted)["x"] for noted in seen] == ["a"]


def test_a_later_correction_holds_for_what_was_noted_before_an_earlier_one_too() -> None:
    body = json.dumps(state(("a", "RUNNING"))).encode()
    seen: list[Any] = []

    def rewrite(noted: str, lost: frozenset[str], instead: Any) -> Any:
        seen.append((set(lost), instead))

    corrections = Corrections()
    assert not corrections
    corrections.put("a", Correction(frozenset({"1", "2"}), frozenset(), rewrite, "x"))
    corrections.put("a", Correction(frozenset({"3"}), frozenset({"2"}), rewrite))
    assert corrections
    corrections.apply(body)
    assert seen == [({"1", "3"}, "x")]


def test_a_trial_without_a_record_of_checkpoints_is_another_shape() -> None:
    made = state(("a", "RUNNING"))
    made["trial_data"][0][1] = "{}"
    with pytest.raises(DamagedError):
        with_records(json.dumps(made).encode(), {"a": 1}, (), {})
