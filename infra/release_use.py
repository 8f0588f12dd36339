"""Use an installed npmdask as a newcomer does; run by ``infra/release.py`` in each clean environment, beside nothing.

``python -I release_use.py VERSION REQUIRES_PYTHON LICENCE FILE``: what the metadata must say, and the file to write and
to run on. Python and command line give the variances that NumPy computes.
"""

import platform
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import numpy as np

import npmdask

version, needed, licence, file = sys.argv[1:]
told = metadata("npmdask")
assert npmdask.__version__ == told["Version"] == version, npmdask.__version__
assert (told["Requires-Python"], told["License-Expression"]) == (needed, licence), told
assert "site-packages" in npmdask.__file__, npmdask.__file__

rows = np.random.default_rng(0).standard_normal((5000, 6)) * [9, 5, 3, 1, 1, 1] + 20
wanted = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:2] ** 2 / (len(rows) - 1)
pca = npmdask.top_k(rows, 2, kind="samples", center=True)
assert np.allclose(pca.explained_variance, wanted, rtol=1e-9), pca.explained_variance

if file.endswith(".csv"):
    np.savetxt(file, rows, delimiter=",", header=",".join("abcdef"), comments="")
else:
    np.save(file, rows)


def command(*words: str) -> str:
    """Run the script that was installed, and return what it printed."""
    done = subprocess.run((Path(sys.executable).with_name("npmdask"), *words), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


assert command("--version").split() == ["npmdask", version]
command("run", file, "-k", "2", "--center")
command("export", "runs/rows", "answer.npz")
with np.load("answer.npz") as answer:
    assert np.allclose(answer["explained_variance"], wanted, rtol=1e-9), answer["explained_variance"]
if file.endswith(".csv"):
    command("report", "runs/rows")
    assert "<svg" in Path("runs/rows/report.html").read_text()
print(f"          Python {platform.python_version()}: npmdask {version}, `npmdask run {file}`: {wanted.round(2)}")
