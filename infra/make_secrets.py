"""Secrets of a topology: made once, random, in a file of lines NAME=VALUE that only its owner reads.

``python3 infra/make_secrets.py FILE``, without any package. A file that is there keeps what it has.
"""

import os
import secrets
import sys
from pathlib import Path

SECRETS = (
    "POSTGRES_PASSWORD",
    "PREFECT_PASSWORD",  # of its role in the database
    "PREFECT_API_PASSWORD",  # of the user npmdask, at its API and its pages
    "LEDGER_PASSWORD",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
)


def read_or_make(file: Path) -> dict[str, str]:
    """The secrets of a file; those that it does not have are made and added."""
    have = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line) if file.exists() else {}
    missing = {name: secrets.token_hex(20) for name in SECRETS if name not in have}  # of letters that a URL may have
    if missing:
        text = "".join(f"{name}={value}\n" for name, value in missing.items())
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as out:
            out.write(text)
    file.chmod(0o600)
    return have | missing


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_secrets.py FILE")
    read_or_make(Path(sys.argv[1]))
