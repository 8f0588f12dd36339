"""Certificates: how wrong an answer can be, from products that were made anyway. NumPy only; no file, no data."""

from __future__ import annotations

from npmdask.core.certificates.bounds import ALWAYS, SEEN, START, Certificate, Evidence, Level, certify, rounding_of
from npmdask.core.certificates.wording import Health, health, sentence

__all__ = [
    "ALWAYS",
    "SEEN",
    "START",
    "Certificate",
    "Evidence",
    "Health",
    "Level",
    "certify",
    "health",
    "rounding_of",
    "sentence",
]
