"""Find topics of documents, once: ``python -m flows.topics '{"documents": ..., "count": 20}'``."""

import sys

from npmdask.prefect.cli import main_of_parameters
from npmdask.prefect.staged_runs import topics

if __name__ == "__main__":
    sys.exit(main_of_parameters(topics))
