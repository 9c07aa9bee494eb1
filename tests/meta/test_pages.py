"""What pages say is there: tests and numbers of the README, all settings and errors, each page."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.meta.repo import ROOT, name_of
from tune_sync import SyncConfig, errors

README = (ROOT / "README.md").read_text()
# What follows `python -m pytest` in the README.
SHOWN = re.findall(r"`(tests/[\w/]+\.py) -k (\w+)`", README)
DOCS = sorted((ROOT / "docs").rglob("*.md"))


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one of that level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def marks_of(test: ast.FunctionDef) -> set[str]:
    return {ast.unparse(mark).removeprefix("pytest.mark.") for mark in test.decorator_list}


def test_each_row_of_the_readme_says_what_shows_it() -> None:
    rows = [r for r in section(README, "What you get").splitlines() if r.startswith("| ")][1:]
    assert len(rows) >= 10
    shown = re.compile(r"`(tests/.*|\./scripts/.*|\.venv/bin/python .*)` \|$")
    assert [row for row in rows if not shown.search(row)] == []
    assert len(SHOWN) >= len(rows) - 3


@pytest.mark.parametrize(("file", "word"), SHOWN, ids=lambda part: part)
def test_what_shows_a_row_of_the_readme_is_there_and_not_slow(file: str, word: str) -> None:
    parsed = ast.parse((ROOT / file).read_text()).body
    tests = [node for node in parsed if isinstance(node, ast.FunctionDef) and word in node.name]
    assert len(tests) == 1 and tests[0].name.startswith("test_")
    assert "slow" not in marks_of(tests[0])


def test_numbers_of_the_readme_are_those_of_the_benchmarks() -> None:
    numbers = re.findall(r"\d+\.\d+(?= s\b| times)", section(README, "Numbers"))
    measured = set(re.findall(r"\d+\.\d+", (ROOT / "docs/benchmarks.md").read_text()))
    assert len(numbers) >= 8
    assert [number for number in numbers if number not in measured] == []


def test_every_setting_is_in_the_one_table() -> None:
    table = (ROOT / "docs/reference/settings.md").read_text()
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert listed == {field.name for field in fields(SyncConfig) if field.init}


def test_every_error_that_is_raised_is_in_the_one_table() -> None:
    page = (ROOT / "docs/howto/errors.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    all_of_them = {v for v in vars(errors).values() if isinstance(v, type)}
    groups = {errors.TuneSyncError, errors.FixCallError, errors.LeaseError}  # never by themselves
    assert listed == {error.__name__ for error in all_of_them - groups}
    assert not re.findall(r"^\| `\w+Error`", README, re.MULTILINE), "the table is in one place"


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_a_page_is_found_from_the_first_one(page: Path) -> None:
    first = ROOT / "docs/index.md"
    of_folder = page.parent / "index.md"  # what the first page leads to for a whole folder
    above = of_folder if of_folder.exists() and page != of_folder else first
    link = f"]({page.relative_to(above.parent).as_posix()}"
    assert page == first or link in above.read_text()
    assert f": {page.relative_to(ROOT / 'docs').as_posix()}\n" in (ROOT / "mkdocs.yml").read_text()
