from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

# These work on machines without Ray.
WITHOUT_RAY = ["tune_sync", "tune_sync.errors", "tune_sync.filesystem", "tune_sync.testing"]
if importlib.util.find_spec("tune_sync.fastpath"):
    WITHOUT_RAY.append("tune_sync.fastpath")

# Loaded by nobody who does not ask for them.
CLOUD = [
    "adlfs", "azure", "boto3", "botocore", "gcsfs", "google.cloud", "s3fs",
    "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs",
]  # fmt: skip

BENCHMARKS = sorted(path.stem for path in Path("benchmarks").glob("*.py"))

BLOCK_RAY = """
import sys

class NoRay:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError("Ray is not installed here", name=name)

sys.meta_path.insert(0, NoRay())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def modules_after(code: str) -> set[str]:
    done = run(f"{code}\nimport sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_block_blocks() -> None:
    assert "Ray is not installed here" in run(BLOCK_RAY + "import ray.tune").stderr


@pytest.mark.parametrize("module", WITHOUT_RAY)
def test_imports_where_ray_is_not_installed(module: str) -> None:
    done = run(f"{BLOCK_RAY}import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", WITHOUT_RAY)
def test_import_does_not_load_ray(module: str) -> None:
    assert "ray" not in modules_after(f"import {module}")


def test_import_loads_no_cloud_library() -> None:
    assert modules_after("import tune_sync").isdisjoint(CLOUD)


def test_import_is_light() -> None:
    assert modules_after("import tune_sync").isdisjoint(["numpy", "pyarrow", "fsspec"])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_find_what_they_measure(name: str) -> None:
    """Nothing else in the tests runs them, and they use what is inside of the package."""
    importlib.import_module(f"benchmarks.{name}")
