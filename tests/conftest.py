"""Settings for all tests, and the rule that CI skips nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A busy machine makes single examples slow; each test has a time limit of its own.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

skipped: list[str] = []


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
