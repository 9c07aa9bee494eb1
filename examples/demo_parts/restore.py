"""A new driver that restores the finished search with plain Ray and uses its best model."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import ray
from ray import tune

from examples.demo_parts.names import NAME, REPORT
from examples.demo_parts.training import digits, load, train


def main() -> int:
    report = json.loads((Path.home() / REPORT).read_text())
    ray.init(log_to_driver=False, logging_level=logging.CRITICAL)
    path = Path.home() / "ray_results" / NAME
    results = tune.Tuner.restore(str(path), trainable=train).get_results()
    best = results.get_best_result("accuracy", "max")
    _, test_x, _, test_y = digits()
    loaded = load(best.checkpoint)
    accuracy = loaded[0].score(test_x, test_y) if loaded else 0.0
    is_same = (
        len(results) == report["trials"]
        and not results.errors
        and best.metrics["accuracy"] == report["best_accuracy"]
        and all(result.checkpoint is not None for result in results)
    )
    print(f"restored {len(results)} trials with ray.tune.Tuner.restore")
    print(f"best trial: {Path(best.path).name}, accuracy {best.metrics['accuracy']:.3f}")
    print(f"its last checkpoint opens and predicts: accuracy {accuracy:.3f}")
    if not is_same or accuracy != best.metrics["accuracy"]:
        print(f"NOT AS REPORTED: the search said {report}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
