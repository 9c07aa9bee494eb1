"""Where isolated hosts cannot be made the demo runs on one machine, and says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples import demo
from tests.bed.need import TOOLS


def test_without_the_tools_for_isolated_hosts_it_says_that_isolation_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran_on: list[Any] = []

    @contextmanager
    def one_machine() -> Iterator[str]:
        yield "one machine"

    def run(hosts: Any, _: object) -> str:
        ran_on.append(hosts)
        return "the test"

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr(demo.places, "one_machine", one_machine)
    monkeypatch.setattr(demo, "run", run)
    assert demo.main() == 1
    assert ran_on == ["one machine"]
    told = capsys.readouterr().out
    assert told.count("!!! ISOLATION IS OFF") == 2  # before all that is shown, and after it
    (reason,) = [line for line in told.splitlines() if "isolated hosts cannot be made here" in line]
    assert all(f"{tool} (Debian package {package})" in reason for tool, package in TOOLS.items())
    assert told.index(reason) < told.index("ISOLATION") < told.index("FAILED: the test")
    assert "checked: no host sees another's" not in told
