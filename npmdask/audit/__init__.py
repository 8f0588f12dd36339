"""An empirical audit of the private release: can an adversary tell neighbours apart better than was promised?

What an audit shows, and what it cannot show: docs/howto/audit.md.
"""

from __future__ import annotations

from npmdask.audit.attacks import Publication, Transcript, without_noise
from npmdask.audit.audit import MECHANISMS, audit, examine, examine_oracle, operator_of, release_path
from npmdask.audit.oracle_paths import PATHS, Once, OraclePath, oracle_paths, summary_of
from npmdask.audit.release_path import Instance, ReleasePath, instances
from npmdask.audit.statistics import ALPHA, LIMITS, Finding, Interval, findings_table

__all__ = [
    "ALPHA",
    "LIMITS",
    "MECHANISMS",
    "PATHS",
    "Finding",
    "Instance",
    "Interval",
    "Once",
    "OraclePath",
    "Publication",
    "ReleasePath",
    "Transcript",
    "audit",
    "examine",
    "examine_oracle",
    "findings_table",
    "instances",
    "operator_of",
    "oracle_paths",
    "release_path",
    "summary_of",
    "without_noise",
]
