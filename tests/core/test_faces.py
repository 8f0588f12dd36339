"""What a plain run, a resumed run and the tables of kinds load, and what is said where a feature is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npmdask
from npmdask.core import features
from npmdask.errors import RefusedError
from tests.conftest import needs

ROOMS = ("cli", "federated", "manage", "models", "planning", "report", "streaming")


def loaded(code: str) -> set[str]:
    """The rooms that a program has loaded at its end."""
    end = "\nimport sys; print(*{name.split('.')[1] for name in sys.modules if name.startswith('npmdask.')})"
    program = f"import numpy as np, npmdask\n{code}{end}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_a_plain_run_loads_no_room_of_a_feature() -> None:
    assert not loaded("npmdask.top_k(np.eye(50) * np.arange(50), 3, kind='samples', center=True)") & {*ROOMS}


@pytest.mark.slow
def test_a_run_is_gone_on_with_without_what_reports_it(tmp_path: Path) -> None:
    npmdask.top_k(np.eye(50) * np.arange(50), 3, store=tmp_path / "run")
    assert not loaded(f"npmdask.resume({str(tmp_path / 'run')!r})") & {"cli", "manage", "models", "report"}


def test_what_is_left_open_for_a_feature_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By shape alone something is chosen; what only a measurement tells is refused."""
    monkeypatch.setattr(features, "PACKAGE", tmp_path / "npmdask")
    rows = np.random.default_rng(0).standard_normal((300, 40)) / np.arange(1, 41)
    assert npmdask.top_k(rows, 3, store=tmp_path / "run").converged
    for asked, feature in ({"iteration_rank": "auto"}, "planning"), ({"k": 0.5}, "share"):
        with pytest.raises(RefusedError, match=f"the feature '{feature}', which this npmdask does not have"):
            npmdask.top_k(rows, **({"k": 3, "store": tmp_path / feature} | asked))  # type: ignore[arg-type]


@needs("dilation", "privacy", "stored_gram")
def test_what_went_to_its_feature_is_still_found_where_it_was() -> None:
    from npmdask.api import deflate, gram, private_components, resume, singular_triplets, solve, top_k

    faces = (deflate, gram, private_components, resume, singular_triplets, top_k)
    assert all(getattr(npmdask, face.__name__) is face for face in faces) and callable(solve)
    with pytest.raises(ImportError):
        from npmdask.api import no_such_name  # noqa: F401
