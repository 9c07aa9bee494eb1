"""Fields of `RunConfig` that are objects of Ray's: what else is given there is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray.air
import ray.train
import ray.tune

from tune_sync import RunConfig
from tune_sync.errors import ConfigError

OF_RAY = (ray.tune, ray.train, ray.air)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("failure_config", {"max_failures": 1}, "ray.tune.FailureConfig(max_failures=1)"),
        ("failure_config", 3, "ray.tune.FailureConfig(...)"),
        ("checkpoint_config", {"num_to_keep": 2, "checkpoint_score_attribute": "a"},
         "ray.tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute='a')"),
        ("checkpoint_config", ray.tune.FailureConfig(), "ray.tune.CheckpointConfig(...)"),
        ("progress_reporter", "cli", "ray.tune.ProgressReporter(...)"),
    ],
)  # fmt: skip
def test_what_is_no_such_object_is_refused_and_the_class_named(
    field: str, value: Any, wanted: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError) as raised:
        RunConfig(storage_path=tmp_path, **given)
    assert str(raised.value).startswith(f"RunConfig({field}={value!r}): ")
    assert str(raised.value).endswith(wanted)


def test_what_ray_takes_is_taken(tmp_path: Path) -> None:
    for made_by in OF_RAY:
        config = RunConfig(
            storage_path=tmp_path,
            failure_config=made_by.FailureConfig(max_failures=2),
            checkpoint_config=made_by.CheckpointConfig(num_to_keep=3),
            progress_reporter=ray.tune.CLIReporter(),
        )
        assert config.failure_config.max_failures == 2
        assert config.checkpoint_config.num_to_keep == 3
    empty: Any = {}
    config = RunConfig(storage_path=tmp_path, failure_config=empty, checkpoint_config=None)
    assert config.failure_config.max_failures == 0
    assert config.checkpoint_config.num_to_keep is None
