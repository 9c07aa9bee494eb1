"""The training function of the demo. Nothing in it knows of tune_sync: it is plain Ray Tune."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

EPOCHS = 12
# Passes over the data in an epoch: enough that an epoch takes a visible part of a second.
PASSES = 8


def train(config: dict[str, Any]) -> None:
    """Train a classifier of digits; every epoch reports its accuracy and a checkpoint."""
    train_x, test_x, train_y, test_y = digits()
    model, epoch, source = load(tune.get_checkpoint()) or (new_model(config), 0, "")
    host = host_name()
    while epoch < EPOCHS:
        for _ in range(PASSES):
            model.partial_fit(train_x, train_y, classes=range(10))
        epoch += 1
        accuracy = float(model.score(test_x, test_y))
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder), model, epoch, accuracy, host)
            tune.report(
                {"epoch": epoch, "accuracy": accuracy, "host": host, "resumed_from": source},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


def digits() -> list[Any]:
    """Train and test images, train and test labels; the same in every process."""
    images, labels = load_digits(return_X_y=True)
    split: list[Any] = train_test_split(images / 16.0, labels, test_size=0.2, random_state=0)
    return split


def new_model(config: dict[str, Any]) -> MLPClassifier:
    return MLPClassifier(
        hidden_layer_sizes=(config["units"], config["units"]),
        learning_rate_init=config["learning_rate"],
        batch_size=config["batch_size"],
        random_state=1,
    )


def save(folder: Path, model: MLPClassifier, epoch: int, accuracy: float, host: str) -> None:
    data = pickle.dumps(model)
    (folder / "model.pkl").write_bytes(data)
    state = {"epoch": epoch, "accuracy": accuracy, "host": host}
    state["model_sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))


def load(checkpoint: tune.Checkpoint | None) -> tuple[MLPClassifier, int, str] | None:
    """Model, epoch, and the checkpoint's name; None where there is nothing to resume from."""
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
        model = pickle.loads(Path(folder, "model.pkl").read_bytes())
    return model, state["epoch"], Path(checkpoint.path).name


def host_name() -> str:
    """Name of this host: each Ray node of the demo has a resource of that name."""
    here = ray.get_runtime_context().get_node_id()
    node = next(n for n in ray.nodes() if n["NodeID"] == here)
    return next(name for name in node["Resources"] if re.fullmatch(r"w\d", name))
