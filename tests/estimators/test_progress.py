"""Estimators show their progress, if they are asked to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npmdask
from tests.conftest import planted


@pytest.mark.parametrize(
    "name", ["PCA", "TruncatedSVD", "IncrementalPCA", "StreamingPCA", "Mixture", "ICA", "Topics", "MCA", "CCA"]
)
def test_estimators_take_it_as_a_parameter(name: str) -> None:
    made = getattr(npmdask, name)(2, progress=True)
    assert made.get_params()["progress"] is True
    assert type(made)(**made.get_params()).progress is True
    assert getattr(npmdask, name)(2).progress is False


def test_an_estimator_shows_its_fit(capsys: Any) -> None:
    a = planted(200, 20, np.geomspace(1, 1e-3, 20))[0]
    for made in (npmdask.PCA(2, progress=True), npmdask.IncrementalPCA(2, progress=True)):
        made.fit(a)
        said = capsys.readouterr().err
        assert said.startswith("done in ") and said.count("\n") == 1
    assert "200 rows" in said
