"""`tune.run` and `ray.tune.RunConfig` with `run_config_kwargs`, and `tune.run(resume=...)`.

Argument: the trials' settings, a list.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray import tune

from tests.hosts.drivers import search
from tune_sync import SyncConfig, run_config_kwargs


def by_tune_run(space: dict[str, Any], on_existing: str, **fields: Any) -> tune.ResultGrid:
    """`tune.run`; its results as a grid, for `describe`."""
    kwargs = run_config_kwargs(SyncConfig(), on_existing=on_existing)
    analysis = tune.run(
        search.trainable_of({}),
        name="by_run",
        config=space,
        raise_on_failed_trial=False,
        verbose=1,
        **kwargs,
        **fields,
    )
    return tune.ResultGrid(analysis)


def main() -> None:
    space = {"settings": tune.grid_search(json.loads(sys.argv[1]))}
    ray.init(log_to_driver=False)
    failed = search.describe(by_tune_run(space, "error"))
    resumed = search.describe(by_tune_run(space, "resume", resume="AUTO+ERRORED"))
    config = tune.RunConfig(**run_config_kwargs(SyncConfig(), name="by_config"), verbose=1)
    tuner = tune.Tuner(search.trainable_of({}), param_space=space, run_config=config)
    by_config = search.describe(tuner.fit())
    found = {"failed": failed, "resumed": resumed, "by_config": by_config}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
