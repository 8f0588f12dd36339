"""A symmetric Gaussian tensor that is drawn while it is asked: E(I, u, u) for few vectors u of any length d.

E is the symmetric part of d^3 independent N(0, 1), so E(w, u, u) and E(w', v, v) are Gaussian with covariance

    ((w^T w') (u^T v)^2 + 2 (w^T v) (w'^T u) (u^T v)) / 3.

Nothing prefers a direction, so E may be drawn in an orthonormal basis Q that grows with the questions: first by the
part of u that is new, then by the part of the answer that is. What is known of a direction q that Q does not have is
E(q, u_s, u_s) = 0 for all earlier u_s, as their answers lie in Q. Hence, with M = E(q, Q, Q), a symmetric Gaussian
matrix (variance 1/3 on the diagonal, 1/6 off it), and c_s = Q^T u_s,

* the part outside Q of new answers has covariance K_nn - K_no K_oo^-1 K_on, K_st = (u_s^T u_t)^2 / 3, in each direction
  (n: new, o: old), independent of what is inside;
* M given c_s^T M c_s = y_s is M + sum_s g_s c_s c_s^T, where K g = (y - (c_s^T M c_s)_s) / 3;
* E(q, q', Q) and E(q, q', q'') of new directions are not restricted at all.

m questions cost O(m^2 d + m^4) and m^3 numbers, not d^3, and what comes out has the law of the dense tensor's answers.
"""

from __future__ import annotations

import itertools

import numpy as np

from npmdask.core.numerics.subspaces import Block

NOTHING = 1e-10  # of a unit vector that is not new, and of what K has no opinion of


class RevealedTensor:
    """``contraction(block)`` is E(I, u, u) of every unit column, consistent with all earlier ones."""

    def __init__(self, d: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.basis = np.zeros((d, 0))
        self.core = np.zeros((0, 0, 0))  # E(Q, Q, Q)
        self.asked = np.zeros((0, 0))  # Q^T u of all questions so far

    def contraction(self, block: Block) -> Block:
        """E(I, u, u) for the columns u (d x L)."""
        if self.basis.shape[1] < len(self.basis):  # else all of E is drawn
            self._reveal(block)
        c = self.basis.T @ block
        answers: Block = self.basis @ np.einsum("abl,bl->al", self.core @ c, c)
        return answers

    def _reveal(self, block: Block) -> None:
        """Extend Q by what is new of the questions, then by what is of the answers."""
        self._extend(_outside(self.basis, block), np.zeros((self.asked.shape[1], 0)).T)
        new = self.basis.T @ block
        outside = self._outside_answers(new, len(block))
        self.asked = np.hstack([self.asked, new])
        directions = _outside(self.basis, outside)
        known = np.zeros((directions.shape[1], self.asked.shape[1]))
        known[:, known.shape[1] - block.shape[1] :] = directions.T @ outside
        self._extend(directions, known)

    def _outside_answers(self, new: Block, d: int) -> Block:
        """What of the answers lies outside Q (d x L), drawn given that nothing of earlier answers does."""
        cross = (self.asked.T @ new) ** 2 / 3
        left = (new.T @ new) ** 2 / 3 - cross.T @ np.linalg.pinv(
            _gram(self.asked), rcond=NOTHING, hermitian=True
        ) @ cross
        values, vectors = np.linalg.eigh(left)
        root = vectors * np.sqrt(np.where(values > NOTHING, values, 0.0))
        noise = self.rng.standard_normal((d, new.shape[1]))
        noise -= self.basis @ (self.basis.T @ noise)
        return noise @ root.T

    def _extend(self, directions: Block, known: np.ndarray) -> None:
        """Draw E on g more orthonormal ``directions`` q, given E(q, u_s, u_s) = ``known`` (g x questions, or g x 0)."""
        n, g = self.basis.shape[1], directions.shape[1]
        known = known if known.size else np.zeros((g, self.asked.shape[1]))
        slices = self._slices(known)
        pairs = self.rng.standard_normal((g, g, n)) / np.sqrt(12)
        pairs = pairs + pairs.transpose(1, 0, 2)
        core = np.empty((n + g,) * 3)
        core[:n, :n, :n] = self.core
        core[n:, :n, :n] = slices
        core[:n, n:, :n] = slices.transpose(1, 0, 2)
        core[:n, :n, n:] = slices.transpose(1, 2, 0)
        core[n:, n:, :n] = pairs
        core[n:, :n, n:] = pairs.transpose(0, 2, 1)
        core[:n, n:, n:] = pairs.transpose(2, 0, 1)
        core[n:, n:, n:] = symmetric_gaussian(g, self.rng)
        self.core = core
        self.basis = np.hstack([self.basis, directions])
        self.asked = np.vstack([self.asked, np.zeros((g, self.asked.shape[1]))])

    def _slices(self, known: np.ndarray) -> np.ndarray:
        """E(q, Q, Q) for each new q (g x n x n), given E(q, u_s, u_s) = ``known`` (g x questions)."""
        n, c = self.basis.shape[1], self.asked
        free = self.rng.standard_normal((len(known), n, n)) / np.sqrt(12)
        free = free + free.transpose(0, 2, 1)
        if not c.shape[1]:
            return free
        lacking = known - ((free @ c) * c).sum(axis=1)
        shares = lacking @ np.linalg.pinv(_gram(c), rcond=NOTHING, hermitian=True) / 3
        return free + (c * shares[:, None, :]) @ c.T


def symmetric_gaussian(d: int, rng: np.random.Generator) -> np.ndarray:
    """All of E at once: d x d x d."""
    draws = rng.standard_normal((d, d, d))
    whole: np.ndarray = sum(draws.transpose(order) for order in itertools.permutations(range(3))) / 6
    return whole


def _gram(c: np.ndarray) -> np.ndarray:
    return (c.T @ c) ** 2 / 3


def _outside(basis: Block, block: Block) -> Block:
    """An orthonormal basis of what the columns add to the orthonormal ``basis``; twice, as once leaves rounding."""
    rest = block - basis @ (basis.T @ block)
    found = np.zeros((len(block), 0))
    for column in rest.T:
        size = np.linalg.norm(column)
        for _ in range(2):
            column = column - basis @ (basis.T @ column)
            column = column - found @ (found.T @ column)
        left = np.linalg.norm(column)
        if left > NOTHING * max(size, 1.0) and basis.shape[1] + found.shape[1] < len(block):
            found = np.hstack([found, column[:, None] / left])
    return found
