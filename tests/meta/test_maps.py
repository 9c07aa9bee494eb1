"""Pages that say where things are in the code name what is there, and all of it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.meta.repo import ROOT

PACKAGE = ROOT / "tune_sync"
WALK = ROOT / "docs/design/a-report-call-by-call.md"
NAME = re.compile(r"`([\w./]+)`")
# A row: a file of the package, and what is called there.
ROW = re.compile(r"^\| `(\w[\w/]*\.py)` \| ((?:`[\w.]+`(?:, )?)+) \|", re.MULTILINE)


def in_the_map() -> set[str]:
    """What the first column of the map in CONTRIBUTING.md names."""
    rows = [r for r in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if r.startswith("| `")]
    return {name for row in rows for name in NAME.findall(row.split("|")[1])}


def defined_in(file: str) -> set[str]:
    """Functions of a module, its classes, and their methods as `Class.method`."""
    found = set()
    for node in ast.parse((PACKAGE / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            inner = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            found |= {node.name, *(f"{node.name}.{n.name}" for n in inner)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def test_every_module_and_every_folder_is_in_the_map_for_contributors() -> None:
    modules = {path.name for path in PACKAGE.glob("[!_]*.py")}
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert (modules | folders) - in_the_map() == set()


def test_what_the_map_for_contributors_names_is_there() -> None:
    assert {name for name in in_the_map() if not (PACKAGE / name).exists()} == set()


def test_every_event_that_the_callback_hears_of_is_on_the_page_of_the_way_into_ray() -> None:
    page = (ROOT / "docs/design/ray-adapter.md").read_text()
    heard = {name for name in defined_in("ray_adapter.py") if name.startswith("SyncCallback.")}
    events = {name.partition(".")[2] for name in heard}
    events = {name for name in events if name.startswith("on_")} | {"setup", "get_state"}
    assert {name for name in events if not re.search(rf"`(Callback\.)?{name}`", page)} == set()


@pytest.mark.parametrize("row", ROW.findall(WALK.read_text()), ids=lambda row: row[0])
def test_what_a_report_is_followed_through_is_there(row: tuple[str, str]) -> None:
    file, named = row
    assert set(NAME.findall(named)) - defined_in(file) == set()


def test_a_report_is_followed_from_its_trial_to_the_state() -> None:
    files = [file for file, _ in ROW.findall(WALK.read_text())]
    rows = [line for line in WALK.read_text().splitlines() if line.startswith("| `")]
    assert len(files) == len(rows), "a row that is not checked"
    assert {"run_filesystem.py", "agents/remote_home.py", "homes/commit.py"} <= set(files)
