"""The run on a GPU that the kill test kills. Run again, it goes on. Argument: folder (holds ``x.zarr``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import npmdask

ASKED: dict[str, Any] = {"k": 6, "kind": "samples", "center": True, "iteration_rank": 8, "tol": 1e-10, "threads": 2}
ASKED |= {"algorithm": "krylov", "options": {"basis_blocks": 2, "precision": "float64"}}  # some dozen steps


def main(folder: Path) -> None:
    """One run from its start, or from where it was killed, to its end."""
    npmdask.top_k(folder / "x.zarr", store=folder / "run", device="cuda", **ASKED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
