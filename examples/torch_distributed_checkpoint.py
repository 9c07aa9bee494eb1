"""`torch.distributed.checkpoint` in a search: its files go into a staged directory, without a copy.

One process writes here. With more, each reports the files that it wrote, under one checkpoint.
Each trial fails once half way, and goes on from its last checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from ray import tune

import tune_sync

STEPS, FAILS_AT = 20, 9


def train_fn(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"])
    state = {"model": model.state_dict(), "step": torch.tensor(-1)}
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            dcp.load(state, checkpoint_id=directory)  # into the tensors that are there
    first = int(state["step"]) + 1
    for step in range(first, STEPS):
        inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["step"].fill_(step)
        with tune_sync.staged_checkpoint() as staged:
            dcp.save(state, checkpoint_id=staged.path)
            metrics = {"loss": loss.item(), "step": step, "first": first}
            tune.report(metrics, checkpoint=staged.checkpoint)
        if step == FAILS_AT and first == 0:
            raise RuntimeError("stumbled, half way")


def main() -> None:
    results = tune.Tuner(
        train_fn,
        param_space={"learning_rate": tune.grid_search([0.05, 0.1])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune_sync.RunConfig(
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
            sync_config=tune_sync.SyncConfig(
                upload_dir=str(Path("~/distributed_results").expanduser()), wait_for="staged"
            ),
        ),
    ).fit()
    assert not results.errors
    for result in results:
        assert (result.metrics["first"], result.metrics["step"]) == (FAILS_AT + 1, STEPS - 1)
    best = results.get_best_result()
    print(f"best loss {best.metrics['loss']:.5f}, checkpoint in {best.checkpoint.path}")


if __name__ == "__main__":
    main()
