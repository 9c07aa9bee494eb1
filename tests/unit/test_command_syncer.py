"""Commands and functions of users: what they are given, and what is said when they fail."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tune_sync import CallbackSyncer, CommandSyncer
from tune_sync.errors import ConfigError, StoreError, SyncTimeoutError

PRINT = f"{sys.executable} -c 'import sys; print(sys.argv[1:]); sys.exit(3)'"
GONE_WITHIN_S = 60.0
LEFT_WITHIN_S = 30.0  # less than what is left would last

# Starts a process of its own, says which one, and waits for ever itself.
HANG = """sh -c 'sleep 100 & echo started $! >&2; sleep 100' sh {source} {target}"""


def command(upload: str | list[str], **settings: Any) -> CommandSyncer:
    return CommandSyncer(upload, "cp -r {source} {target}", "rm -r {target}", **settings)


def is_alive(pid: str) -> bool:
    """Whether it still runs: a dead one that nobody waited for does not."""
    try:
        status = Path("/proc", pid, "status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


def test_what_is_in_a_path_never_becomes_part_of_the_command(tmp_path: Path) -> None:
    source = tmp_path / "a 'b' $(touch injected) {target}"
    source.mkdir()
    target = "s3://b/x; rm -rf / #{source}"
    syncer = command(PRINT + " --from={source} {target} {options}")
    syncer.sync_up(str(source), target)
    with pytest.raises(StoreError) as failure:
        syncer.wait()
    assert repr([f"--from={source}", target]) in str(failure.value)
    assert "exit code 3" in str(failure.value)


def test_the_last_lines_of_a_failure_are_shown_and_not_all_of_it(tmp_path: Path) -> None:
    script = "import sys; print('x' * 9000); sys.stderr.write('\\0quota exceeded'); sys.exit(1)"
    syncer = command([sys.executable, "-c", script, "{source}", "{target}"])
    syncer.sync_up(str(tmp_path), "r")
    with pytest.raises(StoreError, match="quota exceeded") as failure:
        syncer.wait()
    assert len(str(failure.value)) < 4000 and "\0" not in str(failure.value)


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    syncer = command(HANG, sync_timeout=8.0)  # to start processes takes a while
    start_s = time.monotonic()
    syncer.sync_up(str(tmp_path), str(tmp_path))
    with pytest.raises(SyncTimeoutError, match=r"sync_timeout.*was killed: started") as failure:
        syncer.wait()
    assert time.monotonic() - start_s < GONE_WITHIN_S
    started = re.search(r"started (\d+)", str(failure.value))
    assert started is not None
    while is_alive(started[1]):
        assert time.monotonic() - start_s < GONE_WITHIN_S
        time.sleep(0.01)
    assert syncer.delete(str(tmp_path))
    syncer.wait()


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$"])
def test_what_a_command_leaves_behind_that_fails_is_killed(tmp_path: Path, end: str) -> None:
    leaves = f"sleep 100 & echo started $!; {end}"
    syncer = command(["sh", "-c", leaves, "sh", "{source}", "{target}"])
    syncer.sync_up(str(tmp_path), "r")
    with pytest.raises(StoreError) as failure:
        syncer.wait()
    started = re.search(r"started (\d+)", str(failure.value))
    assert started is not None
    start_s = time.monotonic()
    while is_alive(started[1]):
        assert time.monotonic() - start_s < LEFT_WITHIN_S
        time.sleep(0.01)


def test_a_script_that_does_not_say_what_runs_it_is_told(tmp_path: Path) -> None:
    script = tmp_path / "send"
    script.write_text('cp -r "$1" "$2"\n')
    script.chmod(0o755)
    syncer = command(f"{script} {{source}} {{target}}")
    syncer.sync_up(str(tmp_path), "r")
    with pytest.raises(ConfigError, match=r"send' cannot be run on .*first line such as #!/bin/sh"):
        syncer.wait_or_retry()


def test_a_program_that_is_missing_is_named_with_the_host(tmp_path: Path) -> None:
    syncer = command("no-such-program {source} {target}")
    syncer.sync_up(str(tmp_path), "r")
    with pytest.raises(ConfigError, match=r"'no-such-program' cannot be run on .*where the driver"):
        syncer.wait()


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        (("cp {target}", "cp {source} {target}", "rm {target}"), r"upload=.*\{source\} is missing"),
        (("cp {source}", "cp {source} {target}", "rm {target}"), r"upload=.*\{target\} is missing"),
        (("cp {source} {target}", "cp", "rm {target}"), r"download=.*\{source\} is missing"),
        (("cp {source} {target}", "cp {source} {target}", "rm"), r"delete=.*\{target\} is missing"),
        (("cp {source} {target}", "cp {source} {target}", "rm {source} {target}"), "to delete"),
        (("cp '{source} {target}", "cp {source} {target}", "rm {target}"), "No closing quotation"),
        (("", "cp {source} {target}", "rm {target}"), "a command is needed"),
        ((None, "cp {source} {target}", "rm {target}"), r"upload=None"),
    ],
)
def test_commands_that_cannot_work_are_refused(commands: tuple[Any, Any, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CommandSyncer(*commands)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"download='cp'\): a function is needed"):
        CallbackSyncer(print, "cp", print)  # type: ignore[arg-type]


def test_a_function_that_hangs_is_told_and_nothing_runs_beside_it(tmp_path: Path) -> None:
    running: list[str] = []

    def hang(source: str, target: str) -> None:
        running.append(target)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    syncer = CallbackSyncer(hang, hang, print, sync_timeout=0.2)
    syncer.sync_up(str(tmp_path), "first")
    start_s = time.monotonic()
    while not running:
        assert time.monotonic() - start_s < GONE_WITHIN_S
        time.sleep(0.001)
    with pytest.raises(SyncTimeoutError, match="sync_timeout"):
        syncer.wait()
    with pytest.raises(SyncTimeoutError):
        syncer.sync_up(str(tmp_path), "second")
    assert running == ["first"]
    (tmp_path / "go").touch()
    syncer.sync_timeout = GONE_WITHIN_S  # it ends now; how soon, is the machine's affair
    syncer.sync_up(str(tmp_path), "second")
    syncer.wait()
    assert running == ["first", "second"]
