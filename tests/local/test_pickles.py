"""What is pickled holds nothing alive and no secret, and loads where no Ray runs."""

from __future__ import annotations

import os
import pickletools
import subprocess
import sys
from pathlib import Path

import ray.cloudpickle
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tune_sync import RunConfig, SyncConfig

LOAD = """
import pickle, sys
import ray
with open(sys.argv[1], "rb") as file:
    found = pickle.load(file)
config = found if sys.argv[2] == "config" else found["_run_config"]
assert not ray.is_initialized()
handler = config.storage_filesystem.handler
assert handler.run is None
print(type(config).__module__, config.name, config.storage_path, config.sync_config.strict)
"""


def names_in(pickled: bytes) -> set[str]:
    """Every string in a pickle, names of modules and classes among them."""
    return {str(arg) for _, arg, _ in pickletools.genops(pickled) if isinstance(arg, str)}


def load(file: Path, kind: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    argv = [sys.executable, "-c", LOAD, str(file), kind]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_run_config_pickles_as_plain_data(tmp_path: Path) -> None:
    config = RunConfig(name="x", storage_path=tmp_path / "r", sync_config=SyncConfig(strict=True))
    pickled = ray.cloudpickle.dumps(config)
    (tmp_path / "config.pkl").write_bytes(pickled)
    assert not [name for name in names_in(pickled) if "ActorHandle" in name or "ObjectRef" in name]
    where = ["tune_sync.ray_adapter", "x", str(tmp_path / "r"), "True"]
    assert load(tmp_path / "config.pkl", "config") == where
    assert not (tmp_path / "r").exists()


def test_the_tuner_state_of_a_run_loads_without_ray_and_holds_nothing_alive(
    local_ray: None, tmp_path: Path
) -> None:
    config = RunConfig(name="x", storage_path=tmp_path, verbose=0)
    tuner = tune.Tuner(train_n, param_space={"settings": {"steps": 1}}, run_config=config)
    early = (tmp_path / "x/tuner.pkl").read_bytes()
    assert not tuner.fit().errors
    for pickled in (early, (tmp_path / "x/tuner.pkl").read_bytes()):
        names = names_in(pickled)
        assert any("tune_sync" in name for name in names)
        assert not [n for n in names if "ActorHandle" in n or "ObjectRef" in n]
    before = sorted(tmp_path.rglob("*"))
    assert load(tmp_path / "x/tuner.pkl", "tuner")[:2] == ["tune_sync.ray_adapter", "x"]
    assert sorted(tmp_path.rglob("*")) == before
