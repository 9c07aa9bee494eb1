"""The driver of the demo's search. Runs on the head; prints plain progress lines."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from examples.demo_parts.names import BEGINS, NAME, REPORT, TRIAL_COUNT
from examples.demo_parts.progress import Progress, say
from examples.demo_parts.training import EPOCHS, train
from tune_sync import RunConfig, SyncConfig

SPACE = {
    "units": tune.choice([64, 128, 256]),
    "learning_rate": tune.loguniform(1e-4, 1e-1),
    "batch_size": tune.choice([32, 64, 128]),
}


def trial_number(trial: Any) -> int:
    return int(trial.trial_id.rpartition("_")[2]) + 1


def trial_dir_name(trial: Any) -> str:
    return f"trial_{trial_number(trial)}"


def main() -> int:
    own_lines = logging.StreamHandler(sys.__stdout__)
    own_lines.setFormatter(logging.Formatter("tune_sync: %(message)s"))
    logging.getLogger("tune_sync").addHandler(own_lines)
    logging.getLogger("tune_sync").setLevel(logging.INFO)
    say("the driver is up, and joins the cluster")
    ray.init(log_to_driver=False, logging_level=logging.CRITICAL)
    progress = Progress(trial_number)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=TRIAL_COUNT,
            search_alg=BasicVariantGenerator(random_state=3),
            scheduler=ASHAScheduler(
                time_attr="epoch", max_t=EPOCHS, grace_period=3, reduction_factor=2
            ),
            trial_dirname_creator=trial_dir_name,
        ),
        run_config=RunConfig(
            name=NAME,
            sync_config=SyncConfig(),
            failure_config=tune.FailureConfig(max_failures=3),
            callbacks=[progress],
            verbose=0,
        ),
    )
    say(BEGINS)
    results = tuner.fit()
    report = {
        "trials": len(results),
        "errors": [str(error) for error in results.errors],
        "best_accuracy": results.get_best_result().metrics["accuracy"],
        "stored": progress.stored,
        "resumes": progress.resumes,
    }
    (Path.home() / REPORT).write_text(json.dumps(report))
    for error in results.errors:
        print(f"a trial failed: {error}", file=sys.stderr)
    say(f"search done: {len(results)} trials, {len(results.errors)} errors")
    return 1 if results.errors else 0


if __name__ == "__main__":
    # Standard output is for our lines; Ray's tables and warnings go where errors go.
    with contextlib.redirect_stdout(sys.stderr):
        sys.exit(main())
