from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.meta.repo import ROOT, files, name_of, pages

MOST_LINES = 400
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ )?(?:\./)?((?:scripts|\.ci)/[\w./-]+)", re.MULTILINE)


@pytest.mark.parametrize("path", files(".py"), ids=name_of)
def test_no_file_is_too_long_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    targets = LINK.findall(CODE.sub("", page.read_text()))
    local = [t for t in targets if not re.match(r"[a-z]+:|#", t)]
    broken = [t for t in local if not (page.parent / t.partition("#")[0]).exists()]
    assert not broken


def test_commands_of_the_readme_exist_and_run() -> None:
    commands = COMMAND.findall((ROOT / "README.md").read_text())
    assert {"scripts/demo", "scripts/test"} <= set(commands)
    not_runnable = [c for c in commands if not os.access(ROOT / c, os.X_OK)]
    assert not not_runnable


def test_ci_runs_the_command_that_people_run() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "scripts/test" in (ROOT / ".ci/run").read_text()


def test_every_variable_of_the_environment_is_in_the_one_table() -> None:
    used = {
        name
        for path in (ROOT / "tune_sync").rglob("*.py")
        for name in re.findall(r"\bTUNE_SYNC_[A-Z_]+", path.read_text())
    }
    table = (ROOT / "docs/reference/environment.md").read_text()
    listed = set(re.findall(r"^\| `(TUNE_SYNC_[A-Z_]+)` \|", table, re.MULTILINE))
    assert listed == used


@pytest.mark.parametrize("name", ["scripts/demo", "scripts/test", "scripts/bench"])
def test_help_says_what_a_script_does_and_sets_nothing_up(tmp_path: Path, name: str) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = subprocess.run(
        [tmp_path / name, "--help"], capture_output=True, text=True, timeout=250, cwd=tmp_path
    )
    assert done.returncode == 0 and done.stdout.startswith("Sets up what is needed, then ")
    assert f"\n  {name} " in done.stdout and "set -euo" not in done.stdout, done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_a_set_up_says_that_it_downloads_until_its_directory_grows(tmp_path: Path) -> None:
    grows, told = tmp_path / "grows", tmp_path / "told"
    grows.mkdir()
    seen = f"until grep -q %s {told}; do sleep 0.1; done"
    fills = f"head -c 9000000 /dev/urandom >{grows}/it"
    work = f"{seen % 'downloading'}; {fills}; {seen % 'installing'}"
    script = f"source scripts/setup.sh; tell_every_s=0.3; and_tell {grows} sh -c '{work}' >{told}"
    subprocess.run(["bash", "-c", script], cwd=ROOT, check=True, timeout=250)
    first, *_, last = told.read_text().splitlines()
    assert first.endswith(" s, downloading")
    assert re.search(r" s, installing, \d+ MB so far$", last)


def test_nothing_of_a_set_up_that_was_interrupted_goes_on_telling() -> None:
    """Bash has what runs beside ignore Ctrl-C."""
    script = "source scripts/setup.sh; tell_every_s=0.2; and_tell scripts sleep 60"
    # A process that runs in the background has it ignored, and hands that on.
    command = ["env", "--default-signal=INT", "bash", "-c", script]
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert running.stdout is not None and "downloading" in running.stdout.readline()
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(50) != 0
        running.communicate(timeout=60)  # ends with the last one that could write there
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
