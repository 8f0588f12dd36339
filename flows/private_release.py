"""Make one private release: ``python -m flows.private_release CONFIG.toml``."""

import sys

from npmdask.prefect.cli import main
from npmdask.prefect.private_release import private_release

if __name__ == "__main__":
    sys.exit(main(private_release))
