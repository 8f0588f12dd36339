"""Certificates: how wrong an answer can be, from products that were made anyway. NumPy only; no file, no data."""

from __future__ import annotations

from npmdask.certificates.levels import ALWAYS, SEEN, START, Certificate, Evidence, Level, certify, rounding_of
from npmdask.certificates.words import Health, health, sentence

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
