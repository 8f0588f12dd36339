"""Take what is new of a stream into its model, once: ``python -m flows.streaming_update CONFIG.toml``."""

import sys

from npmdask.prefect.cli import main
from npmdask.prefect.streaming_update import open_problem, streaming_update

if __name__ == "__main__":
    sys.exit(main(streaming_update, check=open_problem))
