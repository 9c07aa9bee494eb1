"""Settings for all tests, and the rule that CI skips nothing."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A busy machine makes single examples slow; each test has a time limit of its own.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

skipped: list[str] = []


# Directories on this disk stand in for shared memory, and that is not filled to the end.
FREE_SHARE = 0.17


def pytest_sessionstart(session: pytest.Session) -> None:
    place = tempfile.gettempdir()
    there = shutil.disk_usage(place)
    if there.free < FREE_SHARE * there.total:
        pytest.exit(
            f"{place} has {there.free / there.total:.0%} free, and tests need {FREE_SHARE:.0%}: "
            "make room, or set TMPDIR to a place on another disk",
            returncode=1,
        )


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if skipped and in_ci():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if skipped and in_ci():
        terminalreporter.section("CI must not skip", red=True)
        for nodeid in skipped:
            terminalreporter.line(nodeid)
