"""PyTorch Lightning in a search: its checkpoints are saved fast, and reported by hand-over.

Each trial fails once half way, and goes on from its last checkpoint.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins import TorchCheckpointIO
from ray import tune

import tune_sync
import tune_sync.torch as fast

EPOCHS, FAILS_AT = 6, 3
FILE_NAME = "lightning.ckpt"


class FastCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Saves as `torch.save` does, faster; `torch.load`, and so Lightning, reads the file."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        fast.save(checkpoint, path)


class ReportToTune(lightning.Callback):  # type: ignore[misc]
    """Reports the metrics and a checkpoint of each epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        metrics["epoch"] = trainer.current_epoch
        with tune_sync.staged_checkpoint() as staged:
            trainer.save_checkpoint(staged.path / FILE_NAME)
            tune.report(metrics, checkpoint=staged.checkpoint)
        if trainer.current_epoch == FAILS_AT and trainer.ckpt_path is None:
            raise RuntimeError("stumbled, half way")


class Model(lightning.LightningModule):  # type: ignore[misc]
    """A sum is learnt."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        (inputs,) = batch
        loss = (self.layer(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def train_fn(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.utils.data.TensorDataset(torch.randn(512, 16, generator=generator))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="auto", devices=1, plugins=[FastCheckpointIO()],
        callbacks=[ReportToTune()], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, logger=False,
    )  # fmt: skip
    model = Model(config["learning_rate"])
    batches = torch.utils.data.DataLoader(inputs, batch_size=64)
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        trainer.fit(model, batches)
        return
    with checkpoint.as_directory() as directory:
        trainer.fit(model, batches, ckpt_path=str(Path(directory, FILE_NAME)))


def main() -> None:
    with tempfile.TemporaryDirectory() as staging_dir:
        results = tune.Tuner(
            train_fn,
            param_space={"learning_rate": tune.grid_search([0.01, 0.1])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune_sync.RunConfig(
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=1),
                sync_config=tune_sync.SyncConfig(
                    upload_dir=str(Path("~/lightning_results").expanduser()),
                    wait_for="staged",
                    staging_dir=staging_dir,
                ),
            ),
        ).fit()
    assert not results.errors
    for result in results:
        assert result.metrics["epoch"] == EPOCHS - 1
        assert result.metrics["training_iteration"] <= EPOCHS, "an epoch was done twice"
    best = results.get_best_result()
    print(f"best loss {best.metrics['loss']:.5f}, checkpoint in {best.checkpoint.path}")


if __name__ == "__main__":
    main()
