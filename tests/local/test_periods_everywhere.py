"""`sync_on_checkpoint` counts the same from every entry point, and after a restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.local.test_periods import published
from tests.local.trainables import FAILS_AT, STEPS, stumbles
from tune_sync import RunConfig, SyncConfig, run_config_kwargs

NEVER_S = 1e9  # no turn comes in it, so that only the last of a trial travels


def settings(tmp_path: Path, every: bool) -> SyncConfig:
    return SyncConfig(
        upload_dir=tmp_path / "far", wait_for="staged", staging_dir=tmp_path / "staging",
        sync_on_checkpoint=every, sync_period=NEVER_S,
    )  # fmt: skip


def by_tuner(tmp_path: Path, every: bool, again: bool) -> Any:
    root = str(tmp_path / "far/x")
    if again:
        return tune.Tuner.restore(root, stumbles, resume_errored=True).fit()
    config = RunConfig(name="x", verbose=0, sync_config=settings(tmp_path, every))
    return tune.Tuner(stumbles, run_config=config).fit()


def by_run(tmp_path: Path, every: bool, again: bool) -> Any:
    kwargs = run_config_kwargs(
        settings(tmp_path, every), name="x", on_existing="resume" if again else "error"
    )
    resume = "AUTO+ERRORED" if again else False
    return tune.run(stumbles, verbose=0, resume=resume, raise_on_failed_trial=False, **kwargs)


@pytest.mark.parametrize(
    ("every", "enter"),
    [
        (True, by_tuner),
        (False, by_run),
        pytest.param(True, by_run, marks=pytest.mark.slow),
        pytest.param(False, by_tuner, marks=pytest.mark.slow),
    ],
)
def test_as_many_travel(local_ray: None, tmp_path: Path, enter: Any, every: bool) -> None:
    root = tmp_path / "far/x"
    enter(tmp_path, every, again=False)
    (first,) = published(root).values()
    assert first == (list(range(FAILS_AT)) if every else [FAILS_AT - 1])
    enter(tmp_path, every, again=True)
    (both,) = published(root).values()
    assert both == (list(range(STEPS)) if every else [FAILS_AT - 1, STEPS - 1])
