"""What is kept of a reported result."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from tune_sync.metrics import MOST_LEVELS, plain_metrics


def test_plain_data_stays_and_numbers_of_numpy_become_numbers() -> None:
    result = {
        "loss": np.float32(0.5), "step": np.int64(3), "done": np.bool_(True), "name": "a",
        "none": None, "big": 1 << 80, 7: 1.5, "more": {"x": (1, np.float64(2))},
    }  # fmt: skip
    found = plain_metrics(result)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "loss": 0.5, "step": 3, "done": True, "name": "a", "none": None, "big": 1 << 80,
        "7": 1.5, "more": {"x": [1, 2.0]},
    }  # fmt: skip
    assert {type(found[key]) for key in ("loss", "step", "done")} == {float, int, bool}


def test_the_config_and_what_is_not_plain_data_are_left_out() -> None:
    result = {
        "config": {"rate": 0.1}, "path": Path("a"), "array": np.zeros(2), "list": [1, object()],
        "inner": {"path": Path("a"), "config": 1}, "call": len, "raw": b"1",
    }  # fmt: skip
    assert plain_metrics(result) == {"inner": {"config": 1}}


def test_numbers_that_are_none_survive() -> None:
    found = json.loads(json.dumps(plain_metrics({"nan": math.nan, "inf": np.float64(math.inf)})))
    assert math.isnan(found["nan"])
    assert found["inf"] == math.inf


def test_what_holds_itself_ends() -> None:
    loop: dict[str, object] = {"kept": 1}
    loop["self"] = loop
    found, levels = plain_metrics(loop), 0
    while "self" in found:
        found, levels = found["self"], levels + 1
    assert levels == MOST_LEVELS
