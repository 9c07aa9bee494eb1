"""What is sent of a checkpoint directory, and which links are refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tune_sync.errors import PathRefusedError
from tune_sync.transfer.tree import scan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "checkpoint"
    (root / "sub").mkdir(parents=True)
    (root / "file").write_bytes(b"12345")
    (root / "sub/inner").write_bytes(b"678")
    (tmp_path / "secret").write_bytes(b"secret")
    return root


def paths(root: Path) -> list[str]:
    return [file.path for file in scan(root).files]


def test_files_and_directories_are_sorted_with_their_lengths(root: Path) -> None:
    (root / "empty").touch()
    (root / "nothing").mkdir()
    (root / ".hidden").write_bytes(b"h")
    (root / "new\nline ä").write_bytes(b"n")
    tree = scan(root)
    assert [(f.path, f.size_bytes) for f in tree.files] == [
        (".hidden", 1), ("empty", 0), ("file", 5), ("new\nline ä", 1), ("sub/inner", 3),
    ]  # fmt: skip
    assert tree.directories == ("nothing", "sub")
    assert all(file.source.read_bytes() or file.path == "empty" for file in tree.files)


def test_an_empty_directory_is_an_empty_tree(tmp_path: Path) -> None:
    assert scan(tmp_path) == scan(tmp_path) and not scan(tmp_path).files


def test_a_link_to_a_file_inside_is_sent_as_data(root: Path) -> None:
    (root / "link").symlink_to("sub/inner")
    (root / "absolute").symlink_to(root / "file")
    found = {file.path: (file.source.read_bytes(), file.size_bytes) for file in scan(root).files}
    assert found["link"] == (b"678", 3) and found["absolute"] == (b"12345", 5)


def test_a_link_to_a_directory_inside_is_sent_as_a_directory(root: Path) -> None:
    (root / "again").symlink_to("sub")
    tree = scan(root)
    assert tree.directories == ("again", "sub")
    assert [file.path for file in tree.files] == ["again/inner", "file", "sub/inner"]


def test_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert paths(tmp_path / "link") == ["file", "sub/inner"]


def test_hard_links_are_named_once(root: Path, tmp_path: Path) -> None:
    os.link(root / "file", root / "sub/second")
    os.link(root / "file", root / "a_first")
    os.link(tmp_path / "secret", root / "shared with outside")
    same = {file.path: file.same_as for file in scan(root).files}
    assert same == {
        "a_first": "", "file": "a_first", "sub/second": "a_first",
        "shared with outside": "", "sub/inner": "",
    }  # fmt: skip


def _link_out(root: Path) -> None:
    (root / "bad").symlink_to("../secret")


def _absolute(root: Path) -> None:
    (root / "bad").symlink_to("/etc/hostname")


def _directory_out(root: Path) -> None:
    (root / "bad").symlink_to("..")


def _sibling_with_same_prefix(root: Path) -> None:
    (root.parent / "checkpoint2").mkdir()
    (root / "bad").symlink_to("../checkpoint2")


def _through_another_link(root: Path) -> None:
    (root / "bad").symlink_to(root.parent)
    (root / "sub/deeper").symlink_to("../bad/secret")


def _broken(root: Path) -> None:
    (root / "bad").symlink_to("nowhere")


def _itself(root: Path) -> None:
    (root / "bad").symlink_to("bad")


def _own_parent(root: Path) -> None:
    (root / "sub/bad").symlink_to(".")


def _root_inside(root: Path) -> None:
    (root / "sub/bad").symlink_to(root)


def _circle(root: Path) -> None:
    (root / "one").mkdir()
    (root / "one/bad").symlink_to("../sub")
    (root / "sub/bad").symlink_to("../one")


def _fifo(root: Path) -> None:
    os.mkfifo(root / "bad")


def _socket(root: Path) -> None:
    here = os.getcwd()
    os.chdir(root)  # the path of a socket is limited to 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("bad")
    finally:
        os.chdir(here)


def _device(root: Path) -> None:
    (root / "bad").symlink_to("/dev/null")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_link_out, "leaves the checkpoint"), (_absolute, "leaves"), (_directory_out, "leaves"),
        (_sibling_with_same_prefix, "leaves"), (_through_another_link, "leaves"),
        (_broken, "broken.*'nowhere'"), (_itself, "circle"), (_own_parent, "holds it"),
        (_root_inside, "holds it"), (_circle, "holds it"), (_fifo, "neither"),
        (_socket, "neither"), (_device, "leaves"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_by_name(
    root: Path, make: Callable[[Path], None], why: str
) -> None:
    make(root)
    with pytest.raises(PathRefusedError, match=f"bad.*{why}"):
        scan(root)


def test_a_name_that_is_not_utf_8_is_refused_and_shown(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/b\xff\xfe")).write_bytes(b"1")
    with pytest.raises(PathRefusedError, match=r"b\\xff\\xfe.*UTF-8.*rename"):
        scan(root)


def test_only_a_directory_can_be_scanned(root: Path) -> None:
    with pytest.raises(NotADirectoryError, match="file"):
        scan(root / "file")
    with pytest.raises(FileNotFoundError):
        scan(root / "none")


def test_a_directory_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such directory") as failure:
        scan(tmp_path / "neither/nor")
    assert failure.value.filename == str(tmp_path / "neither/nor")
