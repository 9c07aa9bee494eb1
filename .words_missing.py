
import sys, tempfile, json
from pathlib import Path
import ray
from ray import tune
from tune_sync import RunConfig, SyncConfig
def train_fn(config):
    with tempfile.TemporaryDirectory() as f:
        Path(f, "a").write_text("x")
        tune.report({"s": 1}, checkpoint=tune.Checkpoint.from_directory(f))
ray.init(log_to_driver=False)
for wait in ("stored", "staged"):
    try:
        r = tune.Tuner(tune.with_resources(train_fn, {"cpu": 1, "w1": 1}), run_config=RunConfig(name=wait, verbose=0, sync_config=SyncConfig(wait_for=wait))).fit()
        print("FOUND", wait, [str(e)[-900:] for e in r.errors], flush=True)
    except Exception as e:
        print("RAISED", wait, type(e).__name__, str(e)[-900:], flush=True)
