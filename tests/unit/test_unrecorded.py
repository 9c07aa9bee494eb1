"""What is given up, of what could not be recorded."""

from __future__ import annotations

import errno

import pytest

from tune_sync.errors import DamagedError, NotStoredError, NotWholeError, StoreDeniedError
from tune_sync.manifest import Manifest
from tune_sync.unrecorded import AGAIN_S, LASTING_TRIES_COUNT, Unrecorded

ERROR = OSError(errno.EIO, "Input/output error")


def manifest(number: int, placed_s: float = 0.0) -> Manifest:
    return Manifest(f"t/checkpoint_{number:06d}", "owner", placed_s, (), ())


FIRST, OTHER = manifest(0), manifest(1)


@pytest.mark.parametrize("error", [NotWholeError("an object is missing"), DamagedError("digest")])
def test_what_is_wrong_with_a_checkpoint_itself_is_given_up_at_once(error: Exception) -> None:
    table = Unrecorded()
    assert table.failed(FIRST, error, 0.0)
    assert table.given_up() == {FIRST.checkpoint}


def test_an_outage_gives_up_nothing_however_long_it_lasts() -> None:
    table = Unrecorded()
    table.recorded("t/checkpoint_000009")
    for at_s in range(100):
        table.failed(FIRST, ERROR, at_s)
        table.failed(OTHER, ERROR, at_s)
    assert not table.given_up()


def test_one_that_fails_again_and_again_while_others_do_not_is_given_up() -> None:
    table = Unrecorded()
    for at_s in range(LASTING_TRIES_COUNT):
        assert not table.given_up()
        table.failed(FIRST, StoreDeniedError("that key"), at_s)
        table.recorded(OTHER.checkpoint)
    assert table.given_up() == {FIRST.checkpoint}
    table.failed(manifest(0, 1.0), ERROR, 9.0)  # another one, of that name
    assert not table.given_up()


def test_what_is_left_out_is_tried_again_now_and_then_and_told_once() -> None:
    table = Unrecorded()
    assert table.failed(FIRST, NotWholeError("an object is missing"), 0.0)
    assert [f.manifest for f in table.due(1.0)] == [FIRST]
    table.leave_out([FIRST.checkpoint, "t/recorded meanwhile"])
    assert table.left_out == {FIRST.checkpoint}
    assert not table.due(1.0)
    assert [f.manifest for f in table.due(AGAIN_S + 1)] == [FIRST]
    assert not table.failed(FIRST, NotWholeError("an object is missing"), AGAIN_S + 1)
    assert not table.due(AGAIN_S + 2)
    table.recorded(FIRST.checkpoint)
    assert not table.left_out and not table


def test_the_error_names_those_that_are_asked_for() -> None:
    table = Unrecorded()
    table.failed(FIRST, ERROR, 0.0)
    table.failed(OTHER, ERROR, 0.0)
    table.check([])
    with pytest.raises(NotStoredError, match=f"^{OTHER.checkpoint}: .*Input/output error$"):
        table.check([OTHER.checkpoint])
