"""Parse the commands of a privacy team: budgets, private copies, and audits of the release."""

from __future__ import annotations

import argparse
import json
from typing import Any

from npmdask.core.numerics.units import attributes
from npmdask.errors import warn

REJECTED = 5  # exit code of an audit that rejects


def add_ledger(commands: Any) -> None:
    """``npmdask ledger show|export|grant``."""
    p = commands.add_parser("ledger", help="grant, show and export privacy budgets")
    actions = p.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="show the budget granted, spent and left, after checking the whole ledger")
    show.add_argument("dataset", nargs="?", metavar="NAME", help="name of one data set (default: all)")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.set_defaults(command=_ledger_show)
    export = actions.add_parser(
        "export", help="print every entry as a line of JSON, for a reviewer; nothing in it is secret"
    )
    export.set_defaults(command=_ledger_export)
    grant = actions.add_parser("grant", help="grant a privacy budget for a data set (data owner)")
    _add_grant(grant)
    for action in (show, export, grant):
        action.add_argument(
            "--ledger", metavar="URL|PATH", help="ledger (default: $NPMDASK_LEDGER, or this user's file)"
        )


def _add_grant(p: Any) -> None:
    p.add_argument("dataset", metavar="NAME", help="name of the data set in the ledger")
    p.add_argument("source", help="an ingested store")
    p.add_argument(
        "--relation", required=True, help="neighbouring relation (what is protected): record_replace, entry, ..."
    )
    p.add_argument(
        "--clip-norm", type=float, required=True, help="public bound on the norm of a record, or on every entry"
    )
    p.add_argument(
        "--change",
        type=float,
        default=1.0,
        help="largest difference of an entry between neighbouring data sets (default: 1)",
    )
    p.add_argument("--epsilon", type=float, required=True, help="total epsilon that all runs may spend")
    p.add_argument(
        "--delta", type=float, required=True, help="total delta; far below 1 / (number of records), 0 for pure epsilon"
    )
    p.add_argument(
        "--kind",
        choices=["samples", "symmetric", "matrix", "sparse"],
        help="kind of data (default: as recorded in the store)",
    )
    p.add_argument(
        "--raise", dest="larger", action="store_true", help="confirm that this budget is larger than the one before"
    )
    p.add_argument(
        "--data-changed", action="store_true", help="confirm that the data changed; spent budget stays spent"
    )
    p.add_argument(
        "--other-people",
        metavar="REASON",
        help="reason why these are different people although records are the same as in other data; kept in the ledger",
    )
    p.set_defaults(command=_ledger_grant)


def _ledger(a: argparse.Namespace) -> Any:
    from npmdask.ledger import default_address, open_ledger

    return open_ledger(a.ledger or default_address())


def _ledger_show(a: argparse.Namespace) -> int:
    from npmdask.ledger.format import facts, show_lines

    ledger = _ledger(a)
    print(json.dumps(facts(ledger, a.dataset)) if a.json else "\n".join(show_lines(ledger, a.dataset)))
    return 0


def _ledger_export(a: argparse.Namespace) -> int:
    from npmdask.ledger import export_lines

    for line in export_lines(_ledger(a)):
        print(line)
    return 0


def _ledger_grant(a: argparse.Namespace) -> int:
    from npmdask.accounting import Budget
    from npmdask.ledger.format import status_lines
    from npmdask.ledger.granting import grant_source

    ledger = _ledger(a)
    status, warnings = grant_source(
        ledger,
        a.dataset,
        a.source,
        **attributes(a, "relation", "clip_norm", "change", "kind", "larger", "data_changed", "other_people"),
        budget=Budget(a.epsilon, a.delta),
    )
    warn(*warnings)
    print("\n".join([ledger.where, *status_lines(status)]))
    return 0


def add_perturb(commands: Any) -> None:
    """``npmdask perturb``."""
    p = commands.add_parser("perturb", help="write a private copy of a tensor, with noise on every entry")
    p.add_argument("src", help="an ingested tensor, with a budget in the ledger")
    p.add_argument("dest", help="store to create; after an interruption the same command resumes")
    p.add_argument("--epsilon", type=float, required=True, help="epsilon that the copy spends")
    p.add_argument(
        "--delta", type=float, required=True, help="delta that the copy spends; far below 1 / (number of entries)"
    )
    p.add_argument(
        "--relation", required=True, help="neighbouring relation (what is protected): tensor_entry or tensor_orbit"
    )
    p.add_argument("--clip-norm", type=float, required=True, help="public bound on every entry")
    p.add_argument(
        "--change", type=float, default=1.0, help="largest difference between neighbouring data sets (default: 1)"
    )
    p.add_argument("--dataset", metavar="NAME", help="name of the data set in the ledger (default: its path)")
    p.add_argument("--ledger", metavar="URL|PATH", help="ledger (default: $NPMDASK_LEDGER, or this user's file)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.add_argument("--quiet", action="store_true", help="show no progress")
    p.set_defaults(command=_perturb)


def _perturb(a: argparse.Namespace) -> int:
    from npmdask.core.runs.progress import IngestBar
    from npmdask.core.storage.paths import NEW_STORE, local_path
    from npmdask.privacy.perturb import concerns_of_copy, perturb
    from npmdask.privacy.request import Privacy

    local_path(a.dest, NEW_STORE)  # a place that is refused is refused before the noise is discussed
    privacy = Privacy(
        **attributes(a, "epsilon", "delta", "clip_norm", "change", "ledger", "dataset"),
        neighboring_relation=a.relation,
    )
    warn(*concerns_of_copy(a.src, privacy))
    made = perturb(a.src, a.dest, privacy, IngestBar("perturb", quiet=a.quiet or a.json, each="block"))
    noise = ", ".join(f"{stddev:.4g}" for stddev in made.statement["noise_stddevs"])
    said = (
        f"{made.dest}: {made.statement['protects']}; epsilon = {a.epsilon:g}, delta = {a.delta:g}; noise of stddev "
        f"{noise} on entries with three, two and one different indices; fingerprint {made.fingerprint[:16]}"
    )
    print(json.dumps(made.statement) if a.json else f"{said}\n{made.statement['assurance']}")
    return 0


def add_audit(commands: Any) -> None:
    """``npmdask audit``."""
    p = commands.add_parser("audit", help="attack private releases on worst-case neighbouring data sets; needs no data")
    p.add_argument("--relation", action="append", help="neighbouring relation to test; repeatable (default: all)")
    p.add_argument(
        "--mechanism",
        action="append",
        help="mechanism to test: gaussian, laplace or covariance; for records also a DP-PCA oracle (k-dp-pca, "
        "k-dp-pca-disjoint, k-dp-ojas, k-dp-ojas-reuse, k-dp-power, k-dp-pca-paper-same, k-dp-pca-paper-disjoint) or "
        "one of its parts (distance-range, clipped-mean, paper-range, paper-mean); repeatable (default: all)",
    )
    p.add_argument("--epsilon", type=float, default=4.0, help="claimed epsilon to test against (default: 4)")
    p.add_argument("--delta", type=float, default=1e-6, help="claimed delta of Gaussian noise (default: 1e-6)")
    p.add_argument(
        "--steps", type=int, default=3, help="releases per run; steps per round for DP-PCA oracles (default: 3)"
    )
    p.add_argument(
        "--runs",
        type=int,
        default=5000,
        help="runs per neighbouring data set (default: 5000; one fifth of that for DP-PCA oracles)",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(command=_audit)


def _audit(a: argparse.Namespace) -> int:
    from npmdask.audit import LIMITS, MECHANISMS, PATHS, audit, findings_table

    chosen = {"relations": a.relation} if a.relation else {}
    mechanisms = a.mechanism or [*MECHANISMS, *PATHS]
    findings = list(
        audit(**chosen, mechanisms=mechanisms, epsilon=a.epsilon, delta=a.delta, steps=a.steps, runs=a.runs)
    )
    passed = all(finding.passed for finding in findings)
    report = {"passed": passed, "findings": [finding.facts() for finding in findings], "limits": LIMITS}
    print(json.dumps(report) if a.json else "\n".join(findings_table(findings)))
    return 0 if passed else REJECTED
