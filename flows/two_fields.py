"""Find what two fields have in common, once: ``python -m flows.two_fields '{"kind": "mca", ...}'``."""

import sys

from npmdask.prefect.cli import main_of_parameters
from npmdask.prefect.staged_runs import two_fields

if __name__ == "__main__":
    sys.exit(main_of_parameters(two_fields))
