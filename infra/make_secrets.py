"""Secrets of a topology: made once, random, in a file that only its owner reads."""

import os
import secrets
import sys
from pathlib import Path

if __name__ == "__main__":  # run as a script: Python put infra/ on the path, not the folder above it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from infra.topology import SECRETS


def read_or_make(file: Path) -> dict[str, str]:
    """The secrets of a file of lines NAME=VALUE; those that it does not have are made and added."""
    have = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line) if file.exists() else {}
    missing = {name: secrets.token_hex(20) for name in SECRETS if name not in have}
    if missing:
        text = "".join(f"{name}={value}\n" for name, value in missing.items())
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as out:
            out.write(text)
    file.chmod(0o600)
    return have | missing


if __name__ == "__main__":
    read_or_make(Path(sys.argv[1]))
