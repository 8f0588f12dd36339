"""What earlier answers say of the next one."""

from __future__ import annotations

import numpy as np

from npmdask.dp_pca.exact_oracles import Answers

NOTHING = np.zeros((6, 0))
E = np.eye(6)


def test_before_any_answer_nothing_is_predicted() -> None:
    answers = Answers.none(6, 10.0)
    np.testing.assert_array_equal(answers.predict(E[0], NOTHING), np.zeros(6))
    assert answers.leading(NOTHING) is None


def test_exact_answers_predict_what_they_span() -> None:
    """Fails if the weights are those of another vector, or P is left out."""
    m = np.diag([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    answers = (
        Answers.none(6, 5.0).add(E[0], m @ E[0], 1e-12).add((E[0] + E[1]) / 2**0.5, m @ (E[0] + E[1]) / 2**0.5, 1e-12)
    )
    np.testing.assert_allclose(answers.predict(0.6 * E[0] - 0.8 * E[1], NOTHING), [3.0, -3.2, 0, 0, 0, 0], atol=1e-9)
    np.testing.assert_allclose(answers.predict(E[1], E[:, 1:2]), np.zeros(6), atol=1e-9)


def test_noisy_answers_count_less() -> None:
    """Inverse variances, and no answer at all where the noise is larger than the matrix can be. Fails without the
    ridge: both answers would count the same."""
    answers = Answers.none(6, 10.0).add(E[0], 7.0 * E[0], 1.0).add(E[0], 1.0 * E[0], 0.1)
    assert 1.0 < answers.predict(E[0], NOTHING)[0] < 1.1
    assert abs(Answers.none(6, 10.0).add(E[0], 100.0 * E[0], 1000.0).predict(E[0], NOTHING)[0]) < 0.01


def test_a_round_starts_where_something_stands_out_of_the_noise() -> None:
    """3 times the noise beats 1 times another noise that is larger; in the range of P. Fails without the weights, or
    without P."""
    answers = Answers.none(6, 10.0).add(E[0], 9.0 * E[0], 0.01).add(E[3], 3.0 * E[1], 1.0).add(E[4], 10.0 * E[2], 10.0)
    leading = answers.leading(E[:, :1])
    assert leading is not None
    assert abs(leading[1]) > 0.99
    assert abs(leading[0]) < 1e-15
