"""What is not released cannot be reached from the loop of a private run: by type, and as found in its memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from npmdask.core.runs.observers import Observer
from npmdask.core.storage.source import Source
from npmdask.privacy.mechanisms import PrivateGaussian
from npmdask.privacy.release import PrivateRelease
from tests.privacy.runs.conftest import STEPS, World

POST_PROCESSING = {"state", "released", "info", "query", "views", "history", "arrays", "scalars", "outcome"}


def within(thing: Any) -> Iterator[Any]:
    """What an object holds: fields, members, what a method is bound to, what a function closes over."""
    if isinstance(thing, Walker):
        return  # the test itself
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, MethodType):
        yield thing.__self__
    elif isinstance(thing, FunctionType):
        yield from (cell.cell_contents for cell in thing.__closure__ or () if cell != type(cell)())
    elif not isinstance(thing, type | ModuleType | np.ndarray | str | bytes | int | float):
        yield from getattr(thing, "__dict__", {}).values()
        yield from (getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ()))


def reachable(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every object below ``roots``, each once, with the way to it."""
    waiting, seen = list(roots.items()), set()
    while waiting:
        way, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield way, thing
        waiting += [(f"{way} > {type(part).__name__}", part) for part in within(thing)]


def frame_of(function: str) -> FrameType:
    """The frame of a caller of this function, by name."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    assert frame is not None, f"{function} is not running"
    return frame


class Walker(Observer):
    """At every step, what can be reached from the loop without its release, and from the function that made it."""

    def __init__(self) -> None:
        self.loop: list[list[tuple[str, Any]]] = []
        self.outside: list[list[tuple[str, Any]]] = []

    def on_step(self, step: Any) -> None:
        held = dict(frame_of("power_loop").f_locals)
        assert isinstance(held.pop("release"), PrivateRelease)
        self.loop.append(list(reachable(held)))
        self.outside.append(list(reachable(frame_of("solve").f_locals)))


@pytest.fixture
def walked(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Walker, list[np.ndarray]]:
    """A private run, what could be reached from it, and its products before the noise."""
    exact: list[np.ndarray] = []
    real = PrivateGaussian.release

    def noting(self: PrivateGaussian, product: np.ndarray, **public: Any) -> np.ndarray:
        exact.append(product.copy())
        return real(self, product, **public)

    monkeypatch.setattr(PrivateGaussian, "release", noting)
    walker = Walker()
    solution = world.solve("run", observer=walker)
    assert solution.certificate is None, "it would be made of products"
    assert len(walker.loop) == len(exact) == STEPS
    return walker, exact


def sources(found: list[tuple[str, Any]]) -> list[str]:
    return [way for way, thing in found if isinstance(thing, Source) or hasattr(thing, "tiles")]


@pytest.mark.slow
def test_no_source_and_no_reader_can_be_reached_from_the_loop(walked: tuple[Walker, Any]) -> None:
    """The walk finds them from the function that makes the release, so that it would find them in the loop."""
    walker, _ = walked
    assert all(sources(found) for found in walker.outside)
    assert not [way for found in walker.loop for way in sources(found)]


@pytest.mark.slow
def test_every_array_of_the_loop_follows_from_a_release(walked: tuple[Walker, Any]) -> None:
    walker, _ = walked
    arrays = {way for found in walker.loop for way, thing in found if isinstance(thing, np.ndarray)}
    assert arrays and {way.split(" > ")[0] for way in arrays} <= POST_PROCESSING


@pytest.mark.slow
def test_no_product_before_its_noise_is_in_the_loop(walked: tuple[Walker, list[np.ndarray]]) -> None:
    """Neither as an array nor as a list of numbers or as bytes."""
    walker, exact = walked
    lists, raw = [p.tolist() for p in exact], [p.tobytes() for p in exact]
    for found in walker.loop:
        for way, thing in found:
            assert not (isinstance(thing, np.ndarray) and any(np.array_equal(thing, p) for p in exact)), way
            assert not (isinstance(thing, list) and thing in lists), way
            assert not (isinstance(thing, bytes) and thing in raw), way


def test_the_loop_cannot_be_told_from_its_text_to_look_at_data() -> None:
    """The module of the loop is not where sources are opened, and does not ask what kind of run this is."""
    import npmdask.core.runs.loop as loop

    text = Path(loop.__file__).read_text()
    body = text[text.index("def power_loop") : text.index("def first_state")]
    for word in ("problem", "source", "operator", "executor", "private", "mechanism", "isinstance"):
        assert word not in body.replace("in the units of the operator", ""), word
