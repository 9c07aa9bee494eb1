"""The `tune-sync` command. A sub-command's module is loaded when it is asked for, without Ray.

A new one is a line in `COMMANDS` and a module with `add_arguments` and `run`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from tune_sync import __version__
from tune_sync.errors import TuneSyncError

FAILED, INTERRUPTED = 1, 130


class CommandModule(Protocol):
    """What the module of a sub-command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Say what it takes."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, and return the exit status. Raises TuneSyncError for what the user can change."""


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: its module, and one line about it."""

    module: str
    summary: str


COMMANDS = {
    "bench": Command(
        "tune_sync.commands.bench", "measure the way from memory to memory, of two hosts or one"
    ),
    "doctor": Command(
        "tune_sync.commands.doctor", "tell whether this host can use RDMA, and what it lacks"
    ),
    "sizing": Command("tune_sync.commands.sizing", "tell how much shared memory checkpoints need"),
    "status": Command(
        "tune_sync.monitor.command", "tell how far a run is: what is staged, stored, and lost"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else ""
    if name not in COMMANDS:
        return _tell_commands(words)
    command = COMMANDS[name]
    module = cast(CommandModule, importlib.import_module(command.module))
    parser = argparse.ArgumentParser(f"tune-sync {name}", description=command.summary)
    module.add_arguments(parser)
    try:
        code = module.run(parser.parse_args(words[1:]))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as of `| head`: nobody reads on, and Python writes the rest at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except TuneSyncError as error:
        sys.stderr.write(f"tune-sync {name}: {type(error).__name__}: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _tell_commands(words: list[str]) -> int:
    lines = [f"  {name:10}{command.summary}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        "tune-sync", epilog="\n".join(["commands:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"tune-sync {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.parse_args(words or ["--help"])
    return FAILED  # parse_args has left before, with the help or an error


if __name__ == "__main__":
    sys.exit(main())
