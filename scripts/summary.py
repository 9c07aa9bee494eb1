"""Prints one line that sums up the JUnit reports in a directory."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def summed(reports: Path) -> dict[str, int]:
    """Counts over all reports; an error of a fixture or a collection is a failure."""
    counts = {"tests": 0, "failed": 0, "skipped": 0}
    for report in sorted(reports.glob("*.xml")):
        for suite in ElementTree.parse(report).iter("testsuite"):
            counts["tests"] += int(suite.get("tests", 0))
            counts["failed"] += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            counts["skipped"] += int(suite.get("skipped", 0))
    return counts


if __name__ == "__main__":
    found = summed(Path(sys.argv[1]))
    passed = found["tests"] - found["failed"] - found["skipped"]
    print(f"\n{passed} passed, {found['failed']} failed, {found['skipped']} skipped")
