"""Default syncing needs no cloud library, in the driver or in a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = ("pyarrow._s3fs", "pyarrow._gcsfs", "pyarrow._azurefs", "s3fs", "gcsfs", "adlfs", "boto3")

# Read by every Python process of the cluster when it starts.
SITECUSTOMIZE = f"""
import sys
from importlib.abc import MetaPathFinder

HIDDEN = {HIDDEN!r}

class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ImportError(f"{{name}} is hidden")

sys.meta_path.insert(0, Hide())
"""

DRIVER = """
import importlib, json, os, sys
import ray
from ray import tune
from tune_sync import RunConfig, SyncConfig
from tests.hosts.drivers.trainables import train_n

HIDDEN = sys.argv[2].split(",")

def hidden():
    found = []
    for name in HIDDEN:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found.append("is hidden" in str(error))
    return found

def trial(config):
    hides = hidden()
    train_n(config)
    tune.report({"step": 2, "hides": hides})

ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
config = RunConfig(name="x", storage_path=sys.argv[1], verbose=0,
                   sync_config=SyncConfig(sync_artifacts=True))
space = {"settings": {"steps": 2}}
(result,) = tune.Tuner(trial, param_space=space, run_config=config).fit()
(again,) = tune.Tuner.restore(sys.argv[1] + "/x", trial).get_results()
try:
    RunConfig(storage_path="s3://bucket/x")
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
print("RESULT", json.dumps({
    "error": str(result.error or ""), "hides": [*hidden(), *result.metrics["hides"]],
    "checkpoints": len(again.best_checkpoints), "refused": refused,
}))
"""


@pytest.mark.lowest
def test_default_syncing_works_where_no_cloud_library_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "driver.py").write_text(DRIVER)
    repository = Path(__file__).parents[2]
    paths = [str(tmp_path), str(repository), os.environ.get("PYTHONPATH", "")]
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    argv = [
        sys.executable,
        str(tmp_path / "driver.py"),
        str(tmp_path / "results"),
        ",".join(HIDDEN),
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(lines[-1].removeprefix("RESULT"))
    assert found["error"] == ""
    assert found["hides"] == [True] * 2 * len(HIDDEN)
    assert found["checkpoints"] == 2
    assert found["refused"].startswith("ConfigError")
