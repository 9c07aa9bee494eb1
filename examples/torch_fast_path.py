"""A PyTorch loop in a search: its state goes into shared memory, and is reported as it lies there.

Each trial fails once half way, and goes on from its last checkpoint, which may be in memory still.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ray import tune

import tune_sync
import tune_sync.torch as fast

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS, FAILS_AT = 10, 4
# About how large the state is, and a little more: so that the first one is in memory too.
STATE_BYTES = 1 << 20


def train_fn(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"])
    first, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = fast.load(Path(directory, "state.pt"), map_location=DEVICE)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, EPOCHS):
        inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(epoch)).to(DEVICE)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        with tune_sync.staged_checkpoint(size_bytes=STATE_BYTES) as staged:
            fast.save(state, staged.path / "state.pt")
            metrics = {"loss": loss.item(), "epoch": epoch, "first": first}
            tune.report(metrics, checkpoint=staged.checkpoint)
        if epoch == FAILS_AT and first == 0:
            raise RuntimeError("stumbled, half way")


def main() -> None:
    results = tune.Tuner(
        train_fn,
        param_space={"learning_rate": tune.grid_search([0.001, 0.01])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune_sync.RunConfig(
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
            sync_config=tune_sync.SyncConfig(
                upload_dir=str(Path("~/fast_path_results").expanduser()),
                wait_for="staged",
                fast_path=tune_sync.FastPath(),
            ),
        ),
    ).fit()
    assert not results.errors
    for result in results:
        assert (result.metrics["first"], result.metrics["epoch"]) == (FAILS_AT + 1, EPOCHS - 1)
    best = results.get_best_result()
    print(f"best loss {best.metrics['loss']:.5f}, checkpoint in {best.checkpoint.path}")


if __name__ == "__main__":
    main()
