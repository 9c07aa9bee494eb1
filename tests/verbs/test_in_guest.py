"""Runs all of `inside` in one guest, and reports each of its tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.verbs.guest import Guest

INSIDE = Path(__file__).with_name("inside")
# It takes six minutes of processor time, boot included.
SUITE_TIMEOUT_S = 1500.0
pytestmark = pytest.mark.timeout(SUITE_TIMEOUT_S + 240)


@dataclass(frozen=True, slots=True)
class Report:
    """What the suite said. `failures` maps a file of tests to what went wrong in it."""

    output: str
    counts: dict[str, int]
    failures: dict[str, list[str]]


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest() as running:
        yield running


@pytest.fixture(scope="module")
def report(guest: Guest) -> Report:
    """Of one run: to start Python takes seconds there."""
    results = guest.folder / "results.xml"
    done = guest.python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
        *(f"--confcutdir={INSIDE}", f"--junitxml={results}", "--basetemp=/dev/shm/tests"),
        *("--durations=10", str(INSIDE)),
        timeout_s=SUITE_TIMEOUT_S,
    )
    assert results.exists(), done.output
    counts: dict[str, int] = {}
    failures: dict[str, list[str]] = {}
    for case in ET.parse(results).iter("testcase"):
        names = case.get("classname", "").split(".")
        file = next(name for name in names if name.startswith("test_"))
        counts[file] = counts.get(file, 0) + 1
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped")):
            failures.setdefault(file, []).append(case.get("name", ""))
    return Report(done.output, counts, failures)


@pytest.mark.parametrize("file", sorted(path.stem for path in INSIDE.glob("test_*.py")))
def test_the_tests_inside_pass(report: Report, file: str) -> None:
    assert report.counts.get(file), f"nothing ran of {file}:\n{report.output}"
    assert file not in report.failures, report.output


def test_a_command_that_fails_or_hangs_is_told(guest: Guest) -> None:
    assert guest.run("sh", "-c", "echo here; exit 3").returncode == 3
    assert guest.run("sleep", "60", timeout_s=1).returncode == 124
