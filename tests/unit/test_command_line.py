"""The `tune-sync` command: its sub-commands, what they load, and how they fail."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tune_sync
from tests.meta.repo import ROOT
from tests.meta.test_imports import BLOCK_RAY, modules_after
from tune_sync import cli
from tune_sync.commands import numbers, sizing


def test_it_is_installed_under_its_name() -> None:
    assert 'tune-sync = "tune_sync.cli:main"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_tells_what_it_takes_without_ray(name: str) -> None:
    code = f"{BLOCK_RAY}from tune_sync.cli import main; main([{name!r}, '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"usage: tune-sync {name}" in done.stdout, done.stderr


def test_a_command_loads_nothing_of_the_others() -> None:
    code = "from tune_sync.cli import main; main(['sizing', '--parameters', '1', '--no-check'])"
    loaded = modules_after(code)
    assert "tune_sync.commands.sizing" in loaded
    assert loaded.isdisjoint(["tune_sync.commands.bench", "ray", "numpy", "xxhash", "ssl"])


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"]):
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert left.value.code == 0
        printed = capsys.readouterr().out
        assert all(command.summary in printed for command in cli.COMMANDS.values())


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["nosuch"])
    assert left.value.code == 2 and "bench" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"tune-sync {tune_sync.__version__}\n"


def test_sizing_is_that_of_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sizing", "--parameters", "7e9", "--hosts", "4", "--no-check"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == ("shared memory for each host: 49.4 GB (49411764706 bytes)\n")


def test_sizing_compares_with_this_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli.main(["sizing", "--parameters", "1"]) == 0
    assert "/dev/shm here" in capsys.readouterr().out
    assert cli.main(["sizing", "--parameters", "1e15"]) == 1
    printed = capsys.readouterr().out
    assert "too little by" in printed and "mount -o remount,size=" in printed
    monkeypatch.setattr(sizing, "SHARED_MEMORY", tmp_path)
    assert cli.main(["sizing", "--parameters", "1"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sizing, "memory_available_bytes", lambda: 10_000)  # of a container
    assert cli.main(["sizing", "--parameters", "1000"]) == 1
    printed = capsys.readouterr().out
    assert "container or job: 10.0 KB left" in printed and "too little memory by 18.2 KB" in printed


def test_what_cannot_work_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sizing", "--parameters", "1", "--spare", "2"]) == 1
    printed = capsys.readouterr().err
    assert (
        printed.startswith("tune-sync sizing: ConfigError: spare=2.0") and "\n" not in printed[:-1]
    )


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (numbers.size_bytes, "4096", 4096), (numbers.size_bytes, "64KiB", 65536),
        (numbers.size_bytes, "4M", 4 << 20), (numbers.size_bytes, "1GB", 10**9),
        (numbers.size_bytes, "1.5g", 3 << 29), (numbers.size_bytes, "10B", 10),
        (numbers.count, "7e9", 7_000_000_000), (numbers.count, "8", 8),
        (numbers.seconds, "0.5", 0.5),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(
    parse: Callable[[str], Any], text: str, expected: float
) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (numbers.size_bytes, "many"), (numbers.size_bytes, "-1"), (numbers.size_bytes, "0"),
        (numbers.count, "1.5"), (numbers.count, "0"), (numbers.count, "nan"),
        (numbers.seconds, "0"), (numbers.seconds, "inf"), (numbers.seconds, "x"),
    ],
)  # fmt: skip
def test_other_numbers_are_refused(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'"):
        parse(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(999, "999 B"), (1000, "1.0 KB"), (28_235_294_118, "28.2 GB"), (1e16, "10000.0 TB")],
)
def test_bytes_are_readable(amount: float, text: str) -> None:
    assert numbers.readable(amount) == text


def test_whoever_reads_may_stop_reading() -> None:
    code = "import os, sys, tune_sync.cli as c; os.read(0, 1); sys.exit(c.main(['doctor']))"
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write("x")
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait() == cli.FAILED
