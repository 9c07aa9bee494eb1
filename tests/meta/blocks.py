"""Python code blocks of Markdown pages, and a program that runs those of one page.

`python -m tests.meta.blocks PAGE` runs them in order, in one process, on the Ray of `RAY_ADDRESS`,
or else on one of its own with two CPUs.
A block after the line `<!-- not run: REASON -->` is compiled, not run.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

FENCE = re.compile(
    r"^(?P<skip>[ ]*<!-- not run: \S[^\n]* -->\n(?:[ ]*\n)*)?"
    r"(?P<indent>[ ]*)```(?:python|py)\b[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: where it is, what it says, and whether it is run."""

    page: Path
    line: int
    source: str
    is_run: bool

    def compiled(self) -> CodeType:
        """The code, with the page's own line numbers for tracebacks."""
        return compile("\n" * (self.line - 1) + self.source, str(self.page), "exec")


def blocks_of(page: Path) -> list[Block]:
    """All Python blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            textwrap.dedent(found["code"]),
            not found["skip"],
        )
        for found in FENCE.finditer(text)
    ]


def main(page: Path) -> None:
    import ray

    if "RAY_ADDRESS" in os.environ:
        ray.init()
    else:
        ray.init("local", num_cpus=2, include_dashboard=False)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.is_run:
            print(f"--- {page.name}, line {block.line}", flush=True)
            exec(block.compiled(), names)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
