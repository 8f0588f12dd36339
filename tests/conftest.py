"""Shared material: small matrices with a known answer, and where the large real data sets may lie."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import settings

# The same examples in every run and no deadline: a failure must not depend on chance or on how busy the machine is.
# `pytest --hypothesis-profile=default` explores other examples.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")

# Tests start hundreds of processes. Where bytecode is not kept, each compiles all of npmdask: half of its time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Copies of files that are run as they are go where all else of the tests goes, and not into a person's cache.
os.environ.setdefault("NPMDASK_CACHE", str(Path(tempfile.gettempdir()).resolve() / f"npmdask-cache-{os.getuid()}"))

# Nor do notes of what runs were given go into those of a person (npmdask/core/checkpoint/rights.py).
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()).resolve() / f"npmdask-state-{os.getuid()}")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


# Where single tests take half a minute, most of it waiting for processes. Begun last, they would run alone at the end.
LONG = ("tests/prefect/", "tests/faults/", "tests/test_site.py", "tests/test_benchmarks.py", "tests/test_readme.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest: pytest-xdist's worksteal then takes short tests from the end of what is left."""
    places = {
        item: next((i for i, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG)) for item in items
    }
    items.sort(key=places.__getitem__)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what was collected: to look at 700,000 objects again takes an eighth of
    the processor time of the tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def memory_given_back() -> Iterator[None]:
    """A process that runs thousands of tests stays small: a module leaves neither factors nor freed pages."""
    yield
    _orthonormal.cache_clear()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; freed pages stay in its many arenas without it
    if trim is not None:
        trim(0)


@pytest.fixture(autouse=True)
def signals_given_back() -> Iterator[None]:
    """A command that runs in this process takes SIGTERM: a process that is forked later might never end by it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def sources_given_back() -> Iterator[None]:
    """What a test or an example registers, no other test opens: packages have schemes of the same names."""
    module = sys.modules.get("npmdask.core.storage.source")
    before = dict(module._OPENERS) if module else {}
    yield
    if (module := sys.modules.get("npmdask.core.storage.source")) is not None:
        module._OPENERS.clear()
        module._OPENERS.update(before)


def often(cases: Iterable[Any], *chosen: int) -> list[Any]:
    """Cases of ``parametrize``: the chosen ones (by their place) in every run of the tests, the others in `make full`.

    Each guarantee keeps a case that breaks with it; the others repeat it for further layouts, dtypes or algorithms.
    """
    cases = list(cases)
    assert all(-len(cases) <= place < len(cases) for place in chosen)
    wanted = {place % len(cases) for place in chosen}
    rest = [(case if isinstance(case, tuple) else (case,)) for case in cases]
    return [
        case if place in wanted else pytest.param(*values, marks=pytest.mark.heavy)
        for place, (case, values) in enumerate(zip(cases, rest, strict=True))
    ]


def needs(*features: str) -> pytest.MarkDecorator:
    """Mark a test of the core that asks for features, by a word or with their data: it goes where they are deleted."""
    gone = [feature for feature in features if not (Path(__file__).parents[1] / "npmdask" / feature).is_dir()]
    return pytest.mark.skipif(bool(gone), reason=f"needs {', '.join(gone)}, deleted here")


def planted(m: int, n: int, spectrum: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix U diag(spectrum) V^T (m x n) with its U and V, each an array of its own."""
    u, v = _orthonormal(m, n, len(spectrum), seed)
    return (u * spectrum) @ v.T, u.copy(), v.copy()


@lru_cache(maxsize=8)  # many tests ask for the same factors, and their QR costs more than the run that is tested
def _orthonormal(m: int, n: int, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = np.linalg.qr(rng.standard_normal((m, rank)))[0]
    return u, np.linalg.qr(rng.standard_normal((n, rank)))[0]


def write_zarr(path: Path, array: np.ndarray, chunks: tuple[int, ...] | None = None, **options: object) -> Path:
    """A plain Zarr array, as anybody would write it."""
    z = zarr.create_array(path, shape=array.shape, dtype=array.dtype, chunks=chunks or array.shape, **options)
    z[...] = array
    return path


def unpacked(group: zarr.Group) -> np.ndarray:
    """The whole matrix of a store in packed layout, put together entry by entry of its chunks."""
    data, (d, _) = group["data"][...], group.attrs["npmdask"]["shape"]
    side = data.shape[1]
    n = -(-d // side)
    whole = np.zeros((n * side, n * side), data.dtype)
    places = [(i, j) for i in range(n) for j in range(i, n)]
    assert len(places) == len(data)
    for (i, j), chunk in zip(places, data, strict=True):
        whole[j * side : (j + 1) * side, i * side : (i + 1) * side] = chunk.T
        whole[i * side : (i + 1) * side, j * side : (j + 1) * side] = chunk
    assert not whole[d:].any() and not whole[:, d:].any(), "chunks at the edge are filled up with zeros"
    return whole[:d, :d]


def shared_file(name: str) -> Path:
    """A file of the project's shared data, or a visible skip."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not on this machine (shared data)")
    return path


def same_bytes(left: Path, right: Path, parts: tuple[str, ...] = ("steps", "result", "survey", "left.zarr")) -> None:
    """Assert that two run stores hold the same files with the same bytes, checkpoint by checkpoint."""
    for part in parts:
        names = {p.relative_to(left) for p in (left / part).rglob("*") if p.is_file()}
        assert names == {p.relative_to(right) for p in (right / part).rglob("*") if p.is_file()}, part
        for name in names:
            assert (left / name).read_bytes() == (right / name).read_bytes(), name
    assert (left / "result").is_dir()
