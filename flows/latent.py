"""Find a mixture or independent components, once: ``python -m flows.latent '{"kind": "ica", ...}'``."""

import sys

from npmdask.prefect.cli import main_of_parameters
from npmdask.prefect.staged_runs import latent

if __name__ == "__main__":
    sys.exit(main_of_parameters(latent))
