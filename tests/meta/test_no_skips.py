from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.repo import ROOT

CASES = {
    "mark": "import pytest\n@pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass\n",
    "call": "import pytest\ndef test_a(): pytest.skip('no')\ndef test_b(): pass\n",
    "module": "import pytest\npytest.importorskip('no_such_module')\ndef test_a(): pass\n",
    "none": "def test_b(): pass\n",
}


def run_pytest(folder: Path, body: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_case.py").write_text(body)
    (folder / "test_passes.py").write_text("def test_passes(): pass\n")
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    argv = ["-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(folder)]
    return subprocess.run(
        [sys.executable, *argv, str(folder)],
        env=env, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ci", ["true", ""])
def test_a_skip_fails_in_ci_and_only_there(tmp_path: Path, case: str, ci: str) -> None:
    done = run_pytest(tmp_path, CASES[case], ci)
    assert done.returncode == (1 if ci and case != "none" else 0), done.stdout
    assert ("CI must not skip" in done.stdout) == (bool(ci) and case != "none")
