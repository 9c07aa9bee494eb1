"""The wheel: what is installed is the package, whole, and nothing beside it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from tests.meta.repo import ROOT

BASE = {"ray", "pyarrow", "fsspec", "numpy", "xxhash"}  # Ray Tune itself needs most of them


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    place = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = place.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_it_holds_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "tune_sync"
    ours = {p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == {p.relative_to(ROOT).as_posix() for p in ours}
    assert "tune_sync/py.typed" in held


def test_only_what_the_default_way_needs_is_needed_without_extras(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    needs = [n for n in metadata.get_all("Requires-Dist") or () if "extra ==" not in n]
    assert {re.split(r"[^\w-]", n)[0] for n in needs} == BASE
    assert any(n.startswith("ray[tune]") for n in needs)


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/entry_points.txt"))
    scripts = wheel.read(name).decode()
    module = Path("tune_sync/cli.py")
    assert "tune-sync = tune_sync.cli:main" in scripts and str(module) in wheel.namelist()
