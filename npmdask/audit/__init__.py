"""An empirical audit of the private release: can an adversary tell neighbours apart better than was promised?

What an audit shows, and what it cannot show: docs/audit.md.
"""

from __future__ import annotations

from npmdask.audit.examination import MECHANISMS, audit, examine, operator_of, release_path
from npmdask.audit.finding import ALPHA, LIMITS, Finding, table
from npmdask.audit.instances import Instance, instances
from npmdask.audit.oracle_examination import examine_oracle
from npmdask.audit.oracle_path import Once, OraclePath, summary_of
from npmdask.audit.oracle_paths import PATHS, oracle_paths
from npmdask.audit.publication import Publication, Transcript, without_noise
from npmdask.audit.release_path import ReleasePath
from npmdask.audit.statistics import Interval

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
    "instances",
    "operator_of",
    "oracle_paths",
    "release_path",
    "summary_of",
    "table",
    "without_noise",
]
