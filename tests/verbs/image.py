"""The guest: this distribution's own kernel, and a first program that shows it this machine's disk.

`python -m tests.verbs.image` makes both, from packages that apt-get fetches, and keeps them.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bed.command import run
from tests.bed.errors import BedError

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".setup" / "guest"
BUSYBOX = Path("/bin/busybox")
FETCH_TIMEOUT_S = 300.0
# The kernel's packages, as Debian and Ubuntu name what depends on the newest.
NEWEST = ("linux-image-amd64", "linux-image-generic")
# Soft-RoCE, and what it takes to get this machine's disk into the guest. The first one first:
# without a CRC the link of soft-RoCE cannot be made.
MODULES = (
    "crc32_generic", "virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay", "udp_tunnel",
    "ip6_udp_tunnel", "ib_uverbs", "rdma_rxe", "veth",
)  # fmt: skip
# file or program -> Debian package that brings it
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "/bin/busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "setpriv": "util-linux",
    "zstd": "zstd",
    "rdma": "iproute2",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "ibv_devinfo": "ibverbs-utils",
    "ib_write_bw": "perftest",
}


@dataclass(frozen=True, slots=True)
class Image:
    """What a guest is started from."""

    kernel: Path
    first_program: Path


def missing() -> list[str]:
    """Debian packages that this machine lacks for guests."""
    return sorted(
        {
            package
            for tool, package in NEEDED.items()
            if not (Path(tool).exists() if tool.startswith("/") else _is_program(tool))
        }
    )


def image() -> Image:
    """The image that was made.

    Raises:
        BedError: There is none.
    """
    if lacking := missing():
        raise BedError(f"no guest can run here; install {' '.join(lacking)}, or run scripts/test")
    made = Image(KEPT / "vmlinuz", KEPT / "initrd")
    if not made.first_program.exists():
        raise BedError("there is no guest; make it: python -m tests.verbs.image")
    return made


def make() -> None:
    """Fetch the kernel and make the image, unless it is there.

    Raises:
        BedError: Packages are missing, or cannot be had.
    """
    if lacking := missing():
        raise BedError(f"no guest can be made here; install {' '.join(lacking)}")
    package = _kernel_package()
    stamp = f"{package} {Path(__file__).read_text()}"
    if (KEPT / "stamp").exists() and (KEPT / "stamp").read_text() == stamp:
        return
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="guest-") as folder:
        tree = _fetched(package, Path(folder))
        version = package.removeprefix("linux-image-")
        shutil.copy(tree / f"boot/vmlinuz-{version}", KEPT / "vmlinuz")
        (KEPT / "initrd").write_bytes(gzip.compress(_first_program(tree, version), 1))
    (KEPT / "stamp").write_text(stamp)


def _is_program(name: str) -> bool:
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is not None


def _kernel_package() -> str:
    for newest in NEWEST:
        found = subprocess.run(
            ["apt-cache", "depends", newest], text=True, capture_output=True, check=False
        )
        for line in found.stdout.splitlines():
            kind, _, name = line.strip().partition(" ")
            if kind == "Depends:" and name.startswith("linux-image-"):
                return name
    raise BedError(f"apt knows no kernel ({', '.join(NEWEST)}); run apt-get update")


def _fetched(package: str, folder: Path) -> Path:
    """All files of a kernel. Ubuntu keeps modules in packages of their own."""
    version = package.removeprefix("linux-image-")
    for name in (package, f"linux-modules-{version}", f"linux-modules-extra-{version}"):
        argv = ["apt-get", "download", "-qq", name]
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
        if done.returncode and name == package:
            raise BedError(f"{' '.join(argv)} failed: {done.stderr}")
    tree = folder / "tree"
    for archive in folder.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(archive), str(tree)], FETCH_TIMEOUT_S)
    run(["depmod", "--basedir", str(tree), version])
    return tree


def _modules(tree: Path, version: str) -> list[Path]:
    """Files of modules, each after what it depends on."""
    found: dict[Path, None] = {}
    for name in MODULES:
        argv = ["modprobe", "--dirname", str(tree), "--set-version", version, "--show-depends"]
        for line in run([*argv, name]).splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod":
                found[Path(path)] = None
    return list(found)


def _first_program(tree: Path, version: str) -> bytes:
    root = tree.parent / "first"
    for name in ("bin", "proc", "sys", "dev", "lower", "upper", "new", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    order = []
    for module in _modules(tree, version):
        kept = Path(shutil.copy(module, root / "modules"))
        if kept.suffix == ".zst":
            run(["zstd", "--decompress", "--rm", "--quiet", str(kept)])
            kept = kept.with_suffix("")
        order.append(kept.name)
    (root / "order").write_text("\n".join(order) + "\n")
    shutil.copy(Path(__file__).with_name("guest_init.sh"), root / "init")
    (root / "init").chmod(0o755)
    names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*")))
    argv = ["cpio", "--create", "--format=newc", "--quiet"]
    return subprocess.run(
        argv, input=names.encode(), cwd=root, capture_output=True, check=True
    ).stdout


if __name__ == "__main__":
    make()
