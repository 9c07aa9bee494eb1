"""What someone removes, at the destination or in staging, is lost: named at once, nobody waits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray import tune

from tests.local import trainables
from tests.local.test_adopt import drive_until
from tests.local.test_periods import is_whole, named, newest_state, published
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import NotStoredError


@pytest.mark.parametrize(
    "is_stored",
    [
        pytest.param(True, marks=pytest.mark.lowest),
        pytest.param(False, marks=[pytest.mark.slow, pytest.mark.lowest_slow]),
    ],
)
def test_a_trial_goes_on_from_the_one_before_and_does_not_wait_for_what_was_removed(
    local_ray: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_stored: bool
) -> None:
    """It would wait for half an hour otherwise (`sync_timeout`)."""
    far, staging = tmp_path / "far", tmp_path / "staging"
    sync_config = SyncConfig(
        upload_dir=far, wait_for="staged", staging_dir=staging, sync_on_checkpoint=is_stored
    )
    told = {"mark": str(tmp_path / "mark"), "far": str(far), "staging": str(staging)}
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        results = tune.Tuner(
            trainables.removes_by_hand,
            param_space={**told, "is_stored": is_stored},
            run_config=RunConfig(
                name="x", verbose=0, sync_config=sync_config,
                failure_config=tune.FailureConfig(max_failures=3),
            ),
        ).fit()  # fmt: skip
    assert not results.errors
    assert results[0].metrics["step"] == 1
    if is_stored:
        assert results[0].metrics["resumed_at"] == 1
        (numbers,) = published(far / "x").values()
        assert numbers[0] == 0 and len(numbers) == 2
    said = [r.getMessage() for r in caplog.records if r.name == "ray.tune_sync"]
    (lost,) = [text for text in said if "checkpoint_000001 is lost (it has gone from" in text]
    if is_stored:
        (trial,) = published(far / "x")
        assert lost.endswith(f"; its newest that is stored is {trial}/checkpoint_000000")


@contextmanager
def noting(mark: Path, what: str) -> Iterator[None]:
    """Makes a file when the driver warns of something."""
    handler = logging.Handler(logging.WARNING)

    def note(record: logging.LogRecord) -> bool:
        if what in record.getMessage():
            mark.touch()
        return False

    handler.addFilter(note)
    logging.getLogger("ray.tune_sync").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("ray.tune_sync").removeHandler(handler)


@pytest.mark.lowest_slow
def test_state_does_not_name_what_a_trial_has_lost_that_ended_before(
    local_ray: None, tmp_path: Path
) -> None:
    """Ray notes what it saves of a trial when that reports or stops, and not after."""
    far, staging = tmp_path / "far", tmp_path / "staging"
    sync_config = SyncConfig(
        upload_dir=far, wait_for="staged", staging_dir=staging,
        max_bandwidth_bytes_per_s=trainables.LARGE_BYTES // 40,
    )  # fmt: skip
    told = {"far": str(far), "staging": str(staging), "noticed": str(tmp_path / "noticed")}
    with (
        noting(tmp_path / "noticed", "is lost"),
        pytest.raises(NotStoredError, match=r"checkpoint_000001( is lost:|;) it has gone"),
    ):
        tune.Tuner(
            trainables.loses_its_last_one,
            param_space={**told, "is_lost": tune.grid_search([True, False])},
            run_config=RunConfig(name="x", verbose=0, sync_config=sync_config),
        ).fit()
    found = named(newest_state(far / "x"), far / "x")
    assert [(status, len(names)) for status, names in found] == [("TERMINATED", 1)] * 2
    assert all(is_whole(far / "x", path) for _, names in found for path in names)


@pytest.mark.slow
@pytest.mark.lowest_slow
def test_who_loses_all_that_it_reported_since_a_restore_goes_on_from_what_was_stored_before(
    local_ray: None, tmp_path: Path
) -> None:
    """As when its node dies. With few kept, Ray has forgotten that one by then."""
    far, staging = tmp_path / "far", tmp_path / "staging"
    told = {"mark": str(tmp_path / "mark"), "staging": str(staging)}
    sync = {
        "wait_for": "staged", "staging_dir": str(staging),
        "max_bandwidth_bytes_per_s": trainables.LARGE_BYTES // 40,
    }  # fmt: skip
    root = drive_until(
        lambda: [*published(far / "x").values()] == [[0, 1]], far, "loses_what_it_has_staged",
        space={**told, "max_failures": 3}, checkpoint={"num_to_keep": 2}, sync=sync,
    )  # fmt: skip
    results = tune.Tuner.restore(str(root), trainables.loses_what_it_has_staged).fit()
    assert not results.errors
    assert results[0].metrics["resumed_at"] == 2
