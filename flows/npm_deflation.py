"""Find k components, then more of them: ``python -m flows.npm_deflation CONFIG.toml --more 5``."""

import sys

from npmdask.prefect.cli import main
from npmdask.prefect.parameters import check_plain
from npmdask.prefect.power_method import npm_deflation

if __name__ == "__main__":
    sys.exit(main(npm_deflation, check=check_plain, more=5))
