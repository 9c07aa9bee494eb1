"""What of the checkout the tests in this folder look at."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def files(suffix: str) -> list[Path]:
    """Files of the project with that suffix; hidden folders and built ones are left out."""
    found = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [s for s in subfolders if not s.startswith((".", "_")) and s != "site"]
        found += [Path(folder, name) for name in names if name.endswith(suffix)]
    return sorted(found)


def pages() -> list[Path]:
    """README.md, the other pages beside it, and the documentation."""
    return [p for p in files(".md") if p.parent == ROOT or (ROOT / "docs") in p.parents]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
