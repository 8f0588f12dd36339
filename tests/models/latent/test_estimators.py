"""Mixtures and independent components as estimators."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.models.latent.estimators import ICA, Mixture


@pytest.mark.slow
def test_a_mixture_predicts_what_each_row_came_from() -> None:
    rng = np.random.default_rng(0)
    means = 4 * rng.standard_normal((3, 8))
    from_which = rng.choice(3, 6000, p=[0.5, 0.3, 0.2])
    rows = means[from_which] + rng.standard_normal((6000, 8))
    model = Mixture(3).fit(rows)
    nearest = ((model.means_[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert sorted(nearest) == [0, 1, 2] and model.weights_.sum() == pytest.approx(1)
    np.testing.assert_allclose(model.weights_, np.array([0.5, 0.3, 0.2])[nearest], atol=0.05)
    assert (nearest[model.predict(rows)] == from_which).mean() > 0.99
    np.testing.assert_allclose(model.predict_proba(rows[:9]).sum(axis=1), 1)


@pytest.mark.slow
def test_independent_components_are_told_apart_up_to_sign_and_order() -> None:
    rng = np.random.default_rng(1)
    sources = np.stack([rng.uniform(-1, 1, 9000), rng.laplace(size=9000), np.sign(rng.standard_normal(9000))], axis=1)
    rows = sources @ rng.standard_normal((3, 5)) + 2
    model = ICA(3)
    found = model.fit_transform(rows)
    alike = np.abs(np.corrcoef(found.T, sources.T)[:3, 3:])
    assert sorted(alike.argmax(axis=1)) == [0, 1, 2] and alike.max(axis=1).min() > 0.99
    np.testing.assert_allclose(model.components_ @ model.mixing_, np.eye(3), atol=1e-8)


def test_parameters_and_what_is_not_known_yet() -> None:
    model = Mixture(4, random_state=3)
    assert model.get_params() == {"n_components": 4, "memory": None, "store": None, "random_state": 3}
    assert model.set_params(n_components=2).n_components == 2
    with pytest.raises(BadInputError, match=r"Mixture has no parameter 'components'.*n_components"):
        model.set_params(components=2)
    with pytest.raises(BadInputError, match="Mixture knows nothing yet: call fit first"):
        model.predict(np.ones((2, 3)))
    with pytest.raises(BadInputError, match="ICA knows nothing yet"):
        ICA().transform(np.ones((2, 3)))
