"""An empirical audit of the private release: can an adversary tell neighbours apart better than was promised?

What an audit shows, and what it cannot show: docs/audit.md.
"""

from __future__ import annotations

from npmdask.audit.examination import audit, examine, operator_of, release_path
from npmdask.audit.finding import ALPHA, LIMITS, Finding, table
from npmdask.audit.instances import Instance, instances
from npmdask.audit.publication import Publication, Transcript, without_noise
from npmdask.audit.release_path import ReleasePath
from npmdask.audit.statistics import Interval

__all__ = [
    "ALPHA",
    "LIMITS",
    "Finding",
    "Instance",
    "Interval",
    "Publication",
    "ReleasePath",
    "Transcript",
    "audit",
    "examine",
    "instances",
    "operator_of",
    "release_path",
    "table",
    "without_noise",
]
