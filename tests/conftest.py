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


# From 5% on Ray has its workers fail. Hosts, environments and what tests write take a few GB.
FREE_SHARE = 0.08
FREE_BYTES = 8 << 30


def pytest_sessionstart(session: pytest.Session) -> None:
    place = tempfile.gettempdir()
    there = shutil.disk_usage(place)
    need_bytes = max(FREE_BYTES, int(FREE_SHARE * there.total))
    if there.free < need_bytes:
        pytest.exit(
            f"{place} has {there.free / 1e9:.0f} GB free, and tests need {need_bytes / 1e9:.0f}: "
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
