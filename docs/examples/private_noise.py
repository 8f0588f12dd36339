"""
What privacy costs
==================

Components of 4,000 records under differential privacy, for several epsilons. With a small epsilon the noise drowns
the components. A ledger keeps what is spent: all releases are charged to one budget.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import npmdask
from npmdask.cli.main import main

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
people = rng.standard_normal((4000, 20)) * np.array([3, 2, *[0.5] * 18]) / 4
np.save(folder / "people.npy", people)
main(["ingest", str(folder / "people.npy"), str(folder / "people.zarr"), "--quiet"])
ledger = str(folder / "ledger.sqlite")
owner = ["ledger", "grant", "people", str(folder / "people.zarr"), "--ledger", ledger]
main([*owner, "--relation", "record_replace", "--clip-norm", "1.5", "--epsilon", "10", "--delta", "1e-8"])

best = np.linalg.eigvalsh(people.T @ people)[-2:].sum()
epsilons = [0.03, 0.1, 0.2, 0.5, 1.0, 3.0]
shares = []
for epsilon in epsilons:
    promise = npmdask.Privacy(
        epsilon=epsilon,
        delta=1e-8,
        neighboring_relation="record_replace",
        clip_norm=1.5,
        ledger=ledger,
        dataset="people",
    )
    found = npmdask.top_k(folder / "people.zarr", 2, privacy=promise, store=folder / f"run-{epsilon}")
    shares.append(np.sum((people @ found.basis) ** 2) / best)
for epsilon, share in zip(epsilons, shares, strict=True):
    print(f"epsilon = {epsilon}: {share:.3f} of what the best plane captures")

figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
axis.semilogx(epsilons, shares, "o-")
axis.set(xlabel="epsilon (delta = 1e-8)", ylabel="variance captured, share of the best", ylim=(0, 1.05))
