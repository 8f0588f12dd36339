"""Take what is new of a stream into its model, once: ``python -m flows.streaming_update CONFIG.toml``."""

import sys

from npmdask.prefect.cli import main
from npmdask.prefect.streaming_update import streaming_update
from npmdask.prefect.streams import open_problem

if __name__ == "__main__":
    sys.exit(main(streaming_update, check=open_problem))
