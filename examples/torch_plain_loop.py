"""A plain PyTorch loop, without Ray, that saves its whole state after every epoch.

Training goes on while a state is saved. The loop is stopped half way, and goes on from the file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import tune_sync.torch as fast

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(path: Path, epochs: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first, pending, loss = 0, None, torch.tensor(0.0)
    if path.exists():
        state = fast.load(path, map_location=DEVICE)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, epochs):
        inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(epoch)).to(DEVICE)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        # Returns at once. The file is replaced when the new one is whole.
        pending = fast.save_async(state, path)
    if pending is not None:
        pending.result()  # raises if the last one could not be saved
    return {"first": first, "loss": loss.item(), "state": torch.load(path, map_location="cpu")}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder, "stopped.pt"), epochs=10)
        resumed = train(Path(folder, "stopped.pt"), epochs=20)
        whole = train(Path(folder, "whole.pt"), epochs=20)
    print(f"resumed at epoch {resumed['first']}, loss {resumed['loss']:.4f}")
    print(f"without a stop: loss {whole['loss']:.4f}")
    assert resumed["first"] == 10
    for name, tensor in whole["state"]["model"].items():
        torch.testing.assert_close(resumed["state"]["model"][name], tensor)


if __name__ == "__main__":
    main()
