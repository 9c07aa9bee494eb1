"""Without a bucket no cloud library is needed: by a driver, a worker, any module, a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = (
    "pyarrow._s3fs", "pyarrow._gcsfs", "pyarrow._azurefs",
    "obstore", "s3fs", "gcsfs", "adlfs", "boto3", "botocore",
)  # fmt: skip

# Read by every Python process of the cluster when it starts: as if these were not installed.
SITECUSTOMIZE = f"""
import sys

HIDDEN = {HIDDEN!r}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name in HIDDEN else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""

DRIVER = """
import contextlib, importlib, io, json, os, pkgutil, sys
import ray
from ray import tune
import tune_sync, tune_sync.cli
from tune_sync import RunConfig, SyncConfig
from tests.hosts.drivers.trainables import train_n

HIDDEN = sys.argv[2].split(",")

def hidden():
    found = []
    for name in HIDDEN:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found.append(str(error))
    return found

def unimported():
    found = []
    for module in pkgutil.walk_packages(tune_sync.__path__, "tune_sync."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            found.append(f"{module.name}: {error}")
    return found

def commanded(*words):
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        tune_sync.cli.main(words)
    return told.getvalue()

def trial(config):
    hides = hidden()
    train_n(config)
    tune.report({"step": 2, "hides": hides})

ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000,
         log_to_driver=False)
config = RunConfig(name="x", storage_path=sys.argv[1], verbose=0,
                   sync_config=SyncConfig(sync_artifacts=True))
space = {"settings": {"steps": 2}}
(result,) = tune.Tuner(trial, param_space=space, run_config=config).fit()
(again,) = tune.Tuner.restore(sys.argv[1] + "/x", trial).get_results()

seen = sys.argv[1] + "/seen by all"
config = RunConfig(name="x", verbose=0, sync_config=SyncConfig(upload_dir=seen))
(shared,) = tune.Tuner(trial, param_space=space, run_config=config).fit()
(shared_again,) = tune.Tuner.restore(seen + "/x", trial).get_results()

def refused(**settings):
    try:
        tune.Tuner(trial, run_config=RunConfig(name="x", **settings))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

os.environ["RAY_ADDRESS"] = "local"  # no cluster is looked for
print("RESULT", json.dumps({
    "errors": [str(r.error or "") for r in (result, shared)],
    "hides": [*hidden(), *result.metrics["hides"]],
    "checkpoints": [len(r.best_checkpoints) for r in (again, shared_again)],
    "unimported": unimported(),
    "helps": {name: commanded(name, "--help") for name in tune_sync.cli.COMMANDS},
    "status": commanded("status", sys.argv[1] + "/x"),
    "refused_path": refused(storage_path="s3://bucket/x"),
    "refused": refused(sync_config=SyncConfig(upload_dir="s3://bucket/x")),
    "refused_engine": refused(sync_config=SyncConfig(
        upload_dir="s3://bucket/x", storage_options={"engine": "fsspec"})),
}))
"""


@pytest.mark.lowest_slow
def test_no_cloud_library_is_needed_but_for_a_bucket_which_names_it(tmp_path: Path) -> None:
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
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(lines[-1].removeprefix("RESULT"))
    assert found["errors"] == ["", ""]
    assert found["hides"] == [f"No module named {name!r}" for name in 2 * HIDDEN]
    assert found["checkpoints"] == [2, 2]
    # The lowest Ray has no such part of Ray Train, and its environment no PyTorch.
    others = ("'torch'", "'UserCallback'")
    assert [why for why in found["unimported"] if not any(map(why.__contains__, others))] == []
    assert all(name in told for name, told in found["helps"].items()) and found["helps"]
    assert "stored: 2 checkpoints" in found["status"], found["status"]
    assert found["refused_path"].startswith("ConfigError")
    refused = found["refused"]
    assert refused.startswith("ConfigError: s3://bucket/x") and "pip install obstore" in refused
    assert "s3fs" in refused and '{"engine": "fsspec"}' in refused
    engine = found["refused_engine"]
    assert engine.startswith("ConfigError: s3://bucket/x") and "Install s3fs" in engine
