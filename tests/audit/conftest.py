"""Audits draw noise: its keys are the same in every run of the tests."""

from tests.privacy.keys import seeded_keys  # noqa: F401
