"""Ask nodes for the components of what they hold: ``python -m flows.distributed_private_pca CENTRE.toml``."""

import sys

from npmdask.prefect.cli import main
from npmdask.prefect.power_method import distributed_private_pca

if __name__ == "__main__":
    sys.exit(main(distributed_private_pca))
