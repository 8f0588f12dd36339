"""An empirical audit of the private release: can an adversary tell neighbours apart better than was promised?

What an audit shows, and what it cannot show: docs/audit.md.
"""

from __future__ import annotations

from npmdask.privacy.audit.audit import MECHANISMS, audit, examine, operator_of, release_path
from npmdask.privacy.audit.finding import ALPHA, LIMITS, Finding, table
from npmdask.privacy.audit.instances import Instance, instances
from npmdask.privacy.audit.oracle_audit import examine_oracle
from npmdask.privacy.audit.oracle_path import Once, OraclePath, summary_of
from npmdask.privacy.audit.oracle_paths import PATHS, oracle_paths
from npmdask.privacy.audit.release_path import ReleasePath
from npmdask.privacy.audit.statistics import Interval
from npmdask.privacy.audit.transcript import Publication, Transcript, without_noise

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
