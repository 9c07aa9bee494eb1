"""All code of the documentation compiles and runs: each page and example in a process of its own.

They share one Ray, as most of the time would go into starting it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.bed.ray_node import PYTHONPATH
from tests.meta.blocks import blocks_of
from tests.meta.repo import ROOT, name_of, pages
from tests.stores.seaweed import make_bucket, seaweed

# The demo needs isolated hosts and minutes.
SLOW = {"examples/demo.py"}
# What everyone reads first runs on the lowest Ray too, each time.
BASICS = {
    "README.md", "docs/tutorial/first-search.md", "docs/howto/tune-run-and-train.md",
    "docs/howto/resume.md",
}  # fmt: skip
# These start a Ray that suits them.
WITH_OWN_RAY = {"examples/demo.py", "examples/inner_trainer.py"}
# Has a test of its own, with a server.
WITH_SERVER = {"examples/bucket.py"}


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[str]:
    """The address of a Ray that runs what pages and examples start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # for workers
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield str(ray.get_runtime_context().gcs_address)
        ray.shutdown()


def pages_with(*, run: bool) -> list[Path]:
    return [p for p in pages() if any(block.is_run or not run for block in blocks_of(p))]


def pages_that_run() -> list[object]:
    return [
        pytest.param(
            p, id=name_of(p),
            marks=pytest.mark.lowest if name_of(p) in BASICS else pytest.mark.lowest_slow,
        )
        for p in pages_with(run=True)
    ]  # fmt: skip


def examples() -> list[object]:
    found = sorted(p for p in (ROOT / "examples").glob("*.py") if p.name != "__init__.py")
    found = [p for p in found if name_of(p) not in WITH_SERVER]
    return [
        pytest.param(p, id=p.name, marks=[pytest.mark.slow] if name_of(p) in SLOW else [])
        for p in found
    ]


def run(argv: list[str], home: Path, ray_address: str = "") -> None:
    """Run Python in an empty home directory; show its output if it fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_ADDRESS", "TUNE_"))}
    env |= {"HOME": str(home), "PYTHONPATH": PYTHONPATH}
    env |= {"RAY_ADDRESS": ray_address} if ray_address else {}
    token = Path.home() / ".ray/auth_token"  # of that Ray, where there is one
    if ray_address and token.is_file():
        env.setdefault("RAY_AUTH_TOKEN_PATH", str(token))
    done = subprocess.run(
        [sys.executable, *argv], env=env, cwd=home, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.parametrize("page", pages_with(run=False), ids=name_of)
def test_blocks_compile(page: Path) -> None:
    for block in blocks_of(page):
        block.compiled()


@pytest.mark.parametrize("page", pages_that_run())
def test_blocks_run(page: Path, tmp_path: Path, shared_ray: str) -> None:
    run(["-m", "tests.meta.blocks", str(page)], tmp_path, shared_ray)


@pytest.mark.parametrize("path", examples())
def test_example_runs(path: Path, tmp_path: Path, shared_ray: str) -> None:
    address = "" if name_of(path) in WITH_OWN_RAY else shared_ray
    run(["-m", f"examples.{path.stem}"], tmp_path, address)


def test_an_example_runs_a_second_time(tmp_path: Path, shared_ray: str) -> None:
    for _ in range(2):
        run(["-m", "examples.quickstart"], tmp_path, shared_ray)
    assert len(list((tmp_path / "ray_results").glob("quickstart*"))) == 2


def test_no_example_fails_where_it_ran_before() -> None:
    apart = ("overwrite=True", 'on_existing="move_aside"', "mkdtemp(", "give it another path")
    texts = {p.name: p.read_text() for p in (ROOT / "examples").glob("*.py")}
    named = [name for name, text in texts.items() if re.search(r"\bname=", text)]
    assert [name for name in named if not any(word in texts[name] for word in apart)] == []


def test_every_example_is_listed() -> None:
    listed = (ROOT / "examples/README.md").read_text()
    names = [p.stem for p in (ROOT / "examples").glob("*.py") if p.name != "__init__.py"]
    assert [name for name in names if f"| `{name}" not in listed] == []


def test_the_examples_of_a_bucket_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with seaweed(tmp_path / "weed") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        make_bucket(server)
        run(["-m", "examples.bucket", "s3://bucket/results"], tmp_path, "local")
        run(["-m", "examples.plain_directories", "s3://bucket/own"], tmp_path)


def test_the_example_of_a_bucket_says_that_it_wants_a_url() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.bucket"], cwd=ROOT, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "usage: python -m examples.bucket s3://bucket/path"
    assert "Traceback" not in done.stderr


def test_a_block_is_exempt_only_with_a_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = "```python\n1 / 0\n```\n"
    page.write_text(f"{block}<!-- not run: needs a cluster -->\n{block}<!-- not run: -->\n{block}")
    assert [b.is_run for b in blocks_of(page)] == [True, False, True]


def test_a_failing_block_fails_with_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as failure:
        exec(blocks_of(page)[0].compiled(), {})
    assert failure.traceback[-1].lineno + 1 == 5
