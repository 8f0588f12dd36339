"""
A kill, and the same bits
=========================

A process is killed (``SIGKILL``: it cannot clean up) when its fourth step is on disk. The same call goes on from
there, and ends in the bits of a run that nothing stopped.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import zarr

import npmdask
from npmdask import Observer

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
rows = rng.standard_normal((4000, 100)) / np.sqrt(np.arange(1, 101))
zarr.save(folder / "rows.zarr", rows)

program = f"""
import os, signal, npmdask
from npmdask import Observer
class Killed(Observer):
    def on_step(self, step):
        if step.number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
npmdask.top_k(r"{folder}/rows.zarr", 5, kind="samples", algorithm="power", store=r"{folder}/run", observer=Killed())
"""
print("exit code of the first process:", subprocess.run([sys.executable, "-c", program]).returncode)


class Watch(Observer):
    def __init__(self):
        self.steps, self.residuals = [], []

    def on_step(self, step):
        self.steps.append(step.number)
        self.residuals.append(step.worst_residual)


after, whole = Watch(), Watch()
data = folder / "rows.zarr"
resumed = npmdask.top_k(data, 5, kind="samples", algorithm="power", store=folder / "run", observer=after)
never = npmdask.top_k(data, 5, kind="samples", algorithm="power", store=folder / "never", observer=whole)
print("the same bits:", resumed.basis.tobytes() == never.basis.tobytes())

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
axis.semilogy(whole.steps, whole.residuals, lw=6, alpha=0.3, label="not stopped")
axis.semilogy(after.steps, after.residuals, "o-", ms=4, label="after the kill")
axis.axvline(4, color="C3", ls="--", label="killed")
axis.set(xlabel="step", ylabel="largest relative residual")
axis.legend(frameon=False)
