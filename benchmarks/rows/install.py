"""What the core costs that a user installs: distributions, megabytes, seconds of the import and of the command line."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT
from benchmarks.registry import CannotRunError, Context, Measured, Row

LIMITS = {"distributions": 40.0, "megabytes": 400.0, "import_seconds": 0.3, "help_seconds": 0.3}
STARTS = 9


def measure(context: Context) -> Measured:
    """The wheel, built from this checkout, in an environment of its own; the figure is the worst share of a limit."""
    folder, code = context.folder, "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    built = _done([sys.executable, "-c", code, str(folder)], ROOT).split()[-1]
    _done([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], folder)
    here, bare = folder / "env" / "bin", os.environ | {"PYTHONPATH": ""}
    pip = [sys.executable, "-m", "pip", "--python", str(here / "python"), "--disable-pip-version-check"]
    try:
        _done([*pip, "install", "--quiet", str(folder / built)], folder)
    except subprocess.CalledProcessError as failed:
        last = failed.stderr.strip().splitlines()[-1:]
        raise CannotRunError(f"pip could not install the core ({' '.join(last)}): this row needs the network") from None
    listed = _done([*pip, "list", "--format=freeze"], folder).split()
    size = sum(f.stat().st_size for f in (folder / "env" / "lib").rglob("*") if f.is_file() and not f.is_symlink())
    starts = {
        "nothing": [str(here / "python"), "-c", ""],
        "import": [str(here / "python"), "-c", "import npmdask"],
        "help": [str(here / "npmdask"), "--help"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    for _ in range(STARTS):
        for name, command in starts.items():
            began = time.perf_counter()
            subprocess.run(command, cwd=folder, env=bare, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {
        "distributions": float(len(listed)),
        "megabytes": size / 1e6,
        "import_seconds": middle["import"] - middle["nothing"],
        "help_seconds": middle["help"],
    }
    shares = {name: value / LIMITS[name] for name, value in figures.items()}
    worst = max(shares, key=lambda name: shares[name])
    details: dict[str, Any] = {**{name: round(value, 3) for name, value in figures.items()}, "limits": LIMITS}
    return Measured(shares[worst], details, f"{worst.replace('_', ' ')}: {figures[worst]:.3g}")


def _done(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


ROWS = (
    Row(
        name="install",
        what="pip install: largest share of 40 distributions, 400 MB, 0.3 s of `import npmdask`, 0.3 s of `npmdask "
        "--help`",
        target=1.0,
        better="lower",
        run=measure,
    ),
)
