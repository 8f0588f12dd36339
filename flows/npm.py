"""Find the leading components of stored data, once: ``python -m flows.npm CONFIG.toml``."""

import sys

from npmdask.prefect.cli import main
from npmdask.prefect.parameters import check_plain
from npmdask.prefect.power_method import npm

if __name__ == "__main__":
    sys.exit(main(npm, check=check_plain))
