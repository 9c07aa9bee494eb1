"""A virtual machine with an RDMA device made of software. Commands see this machine's disk.

The processor is emulated: it boots in seconds, and everything in it is slow. It shows that bytes
arrive and that errors are right, never how fast hardware is.
"""

from __future__ import annotations

import compileall
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.bed.errors import BedError
from tests.verbs.image import ROOT, image

ADDRESS = "10.9.0.1"
BOOT_TIMEOUT_S = 240.0
COMMAND_TIMEOUT_S = 240.0
# The guest's own limit comes first, so that what it printed arrives.
GRACE_S = 20.0
POLL_S = 0.05
# Without what costs time when it is emulated: the kernel then copies 8 bytes at a time, not one.
PROCESSOR = "max,erms=off,fsrm=off,smap=off,smep=off,la57=off"
KERNEL_OPTIONS = "console=ttyS0 quiet panic=-1 reboot=t mitigations=off"


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended.

    Attributes:
        returncode: Its exit status; 124 when it took too long.
        output: All that it printed.
    """

    returncode: int
    output: str


@dataclass(slots=True)
class Guest:
    """One virtual machine, from `with` on.

    Attributes:
        address: Of its RDMA device.
        memory_mib: What it may use, its files in memory included.
        wire: Arguments of QEMU for a network card; none: its device is on a card of its own.
    """

    address: str = ADDRESS
    memory_mib: int = 2048
    wire: tuple[str, ...] = ()
    folder: Path = field(init=False)
    _process: subprocess.Popen[bytes] = field(init=False)
    _count: int = field(init=False, default=0)

    def __enter__(self) -> Guest:
        made = image()
        for package in ("tune_sync", "tests"):  # once here, not at every start there
            compileall.compile_dir(ROOT / package, quiet=1)
        self.folder = Path(tempfile.mkdtemp(prefix="tune_sync-guest-"))
        shutil.copy(Path(__file__).with_name("guest.sh"), self.folder)
        log = (self.folder / "qemu.log").open("wb")
        # A guest ends with its test, however that ends.
        argv = ["setpriv", "--pdeathsig", "KILL", *self._qemu(made.kernel, made.first_program)]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Cut its power."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Done:
        """Run a command in the guest, from the root of the checkout, and wait for its end.

        Raises:
            BedError: The guest is gone.
        """
        return self.end(self.start(*argv, timeout_s=timeout_s), timeout_s)

    def python(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Done:
        """Run this Python, with this checkout, in the guest."""
        return self.run(sys.executable, *arguments, timeout_s=timeout_s)

    def start(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Begin a command; returns the name of its files in `folder`."""
        self._count += 1
        name = f"{self._count:04}"
        paths = ":".join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(":")])
        script = (
            f"export PYTHONPATH={shlex.quote(paths)} PYTHONUNBUFFERED=1 TUNE_SYNC_TEST_GUEST=1\n"
            "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1\n"
            f"cd {shlex.quote(str(ROOT))} && exec timeout -k 5 {timeout_s} {shlex.join(argv)}\n"
        )
        new = self.folder / f"{name}.new"
        new.write_text(script)
        new.rename(self.folder / f"{name}.job")
        return name

    def end(self, name: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Done:
        """Wait for the end of a command that was begun. Raises as `run` does."""
        status = self.folder / f"{name}.rc"
        self._wait_for(status, timeout_s + GRACE_S)
        output = (self.folder / f"{name}.out").read_text(errors="replace")
        return Done(int(status.read_text()), output)

    def pause(self, seconds: float) -> None:
        """Let nothing in it run for so long."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def _wait_until_ready(self) -> None:
        self._wait_for(self.folder / "ready", BOOT_TIMEOUT_S)
        state = (self.folder / "ready").read_text()
        if "ACTIVE" not in state:
            raise BedError(f"the guest has no RDMA device: {state!r}\n{self._console()}")

    def _wait_for(self, path: Path, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not path.exists():
            if self._process.poll() is not None:
                raise BedError(f"the guest ended: {self._console()}")
            if time.monotonic() > deadline_s:
                raise BedError(f"no {path.name} within {timeout_s} s: {self._console()}")
            time.sleep(POLL_S)

    def _console(self) -> str:
        logs = [self.folder / "console", self.folder / "qemu.log"]
        return "\n".join(p.read_text(errors="replace")[-4000:] for p in logs if p.exists())

    def _qemu(self, kernel: Path, first_program: Path) -> list[str]:
        # `-accel tcg`: guests were seen to hang on a /dev/kvm within a virtual machine.
        return [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-M", "q35"),
            *("-m", str(self.memory_mib), "-smp", "2", "-nodefaults", "-no-user-config"),
            *("-nographic", "-no-reboot", "-serial", f"file:{self.folder / 'console'}"),
            *("-kernel", str(kernel), "-initrd", str(first_program), "-append"),
            f"{KERNEL_OPTIONS} work={self.folder} address={self.address}",
            *_shared(Path("/"), "root", ",readonly=on"),
            *_shared(self.folder, "work"),
            *self.wire,
        ]


def _shared(folder: Path, tag: str, more: str = "") -> tuple[str, str]:
    options = f"mount_tag={tag},security_model=none,multidevs=remap{more}"
    return "-virtfs", f"local,path={folder},{options}"
