"""What the bed needs from the machine, checked before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.bed.errors import BedError

# tool -> Debian package that brings it
TOOLS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "env": "coreutils",
}
# Everything a host is made of, tried once for real: a kernel or a container may forbid any of it.
PROBE = (
    "mount --make-rprivate / && mount -t tmpfs tmpfs /srv && mount -t tmpfs tmpfs /dev/shm"
    " && mount -o remount,bind,ro / && ip link add br0 type bridge"
    " && ip link add v0 type veth peer name v1 && ip link set v0 master br0"
)
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc"]


def missing() -> list[str]:
    """One line for each thing the bed lacks here; empty when it can run."""
    if sys.platform != "linux":
        return [f"the bed needs Linux namespaces; this is {sys.platform}"]
    lacking = [
        f"{tool} (Debian package {package})"
        for tool, package in TOOLS.items()
        if shutil.which(tool) is None
    ]
    if lacking:
        return lacking
    if os.geteuid() != 0:
        return ["root: run as root, or inside `unshare --user --map-root-user --mount`"]
    probe = subprocess.run(
        [*UNSHARE, "sh", "-c", PROBE], text=True, capture_output=True, check=False
    )
    return [f"network, mount or PID namespaces: {probe.stderr.strip()}"] if probe.returncode else []


def require() -> None:
    """Raise unless the bed can run here.

    Raises:
        BedError: Names everything that is missing and what to do about it.
    """
    lacking = missing()
    if lacking:
        raise BedError(
            "the test bed of isolated hosts cannot run here; missing: "
            + "; ".join(lacking)
            + ". On Debian or Ubuntu `python -m tests.bed.need install` gets the tools."
        )


def install() -> None:
    """Install the tools with apt-get; does nothing when all are there. Needs root.

    Raises:
        BedError: apt-get is not there, or failed.
    """
    packages = sorted({pkg for tool, pkg in TOOLS.items() if shutil.which(tool) is None})
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise BedError(f"no apt-get here; install these yourself: {' '.join(packages)}")
    for argv in (["apt-get", "update"], ["apt-get", "install", "-y", *packages]):
        if subprocess.run(argv, check=False).returncode:
            raise BedError(f"`{' '.join(argv)}` failed; install {' '.join(packages)} yourself")


def become_root() -> None:
    """Re-run this Python program as root of a user namespace when it is not root already.

    Returns at once for root. Otherwise does not return: the same command line starts again
    inside the namespace, where it may make networks and mounts of its own.
    """
    if os.geteuid() == 0:
        return
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.orig_argv[1:]]
    os.execvp("unshare", argv)


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        install()
    lacking_now = missing()
    print("\n".join(lacking_now) or "the bed can run here")
    sys.exit(bool(lacking_now))
