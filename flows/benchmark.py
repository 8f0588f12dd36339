"""Measure rows of ``python -m benchmarks``: ``python -m flows.benchmark '{"rows": ["pass-warm"]}'``."""

import sys

from npmdask.prefect.benchmark import benchmark
from npmdask.prefect.cli import main_of_parameters

if __name__ == "__main__":
    sys.exit(main_of_parameters(benchmark))
