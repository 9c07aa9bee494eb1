from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.meta.test_imports import BLOCK_RAY, modules_after, run


def test_the_tests_of_pytorch_run() -> None:
    assert importlib.util.find_spec("torch"), "install PyTorch: pip install '.[dev]'"


def test_slots_need_no_pytorch() -> None:
    assert modules_after("import tune_sync.fastpath").isdisjoint(["torch", "ray", "numpy"])


@pytest.mark.parametrize("module", ["tune_sync.torch", "tune_sync.fastpath.torch_saver"])
def test_saving_needs_no_ray(module: str) -> None:
    code = f"{BLOCK_RAY}import {module}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_the_pinned_ones() -> None:
    import tune_sync.torch as fast

    assert sorted(fast.__all__) == ["configure", "load", "prepare", "save", "save_async"]
    assert all(getattr(fast, name).__doc__ for name in fast.__all__)


def test_pytorch_that_is_missing_is_named_with_the_extra() -> None:
    said = run("import sys; sys.modules['torch'] = None; import tune_sync.torch").stderr
    assert said.splitlines()[-1] == (
        "ModuleNotFoundError: tune_sync.torch needs PyTorch, which is not installed: "
        "pip install 'tune-sync[torch]'"
    )
