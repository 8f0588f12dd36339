"""Show a solution: in a line, as a table in a notebook, and as the attributes of a file that holds it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from npmdask.core.storage.kinds import traits_of
from npmdask.errors import package_version

if TYPE_CHECKING:
    from npmdask.core.runs.solution import Solution

SHOWN = 5  # values that a line shows
VALUES_ARE = {  # of samples, by whether they were centred
    ("samples", True): "eigenvalues of the covariance matrix: variances, n in the denominator",
    ("samples", False): "mean squares of the scores of rows that were not centred",
}


def line_of(solution: Solution) -> str:
    """The answer in a line."""
    k, d = solution.basis.shape[1], solution.basis.shape[0]
    values = ", ".join(f"{value:.4g}" for value in solution.values[:SHOWN])
    more = ", ..." if k > SHOWN else ""
    return (
        f"<Solution: {k} component{'s'[: k != 1]} of {d:,} columns, {solution.outcome.name} after {solution.steps} "
        f"step{'s'[: solution.steps != 1]}; {solution.values_are}: {values}{more}; store {solution.store}>"
    )


def html_of(solution: Solution) -> str:
    """The same for a notebook, with how wrong it can be."""
    head = "".join(f"<th>{i + 1}</th>" for i in range(min(len(solution.values), SHOWN)))
    cells = "".join(f"<td>{value:.6g}</td>" for value in solution.values[:SHOWN])
    more = f"<td>of {len(solution.values)}</td>" if len(solution.values) > SHOWN else ""
    said = "".join(f"<p>{escape(text)}</p>" for text in (solution.outcome.sentence, solution.assurance) if text)
    return (
        f"<div><strong>{solution.basis.shape[1]} components of {solution.basis.shape[0]:,} columns</strong>{said}"
        f"<table><tr><th>component</th>{head}</tr><tr><th>{solution.values_are}</th>{cells}{more}</tr></table>"
        f"<p><small>{escape(solution.store)}</small></p></div>"
    )


def attributes_of(solution: Solution, scaled: bool) -> dict[str, Any]:
    """Say what was done to the data, what is explained, and how the run ended; ``scaled``: by deviations of columns."""
    analysed, share = solution.analysed, solution.explained_share
    weighted = analysed.components is not None and analysed.components.column_weight is not None
    of = "variance" if analysed.centred else "sum of squares"
    facts: dict[str, Any] = {
        "Conventions": "CF-1.11",
        "source": f"npmdask {package_version()}",
        "kind": analysed.kind,
        "columns": f"{'centred' if analysed.centred else 'not centred'}, "
        f"{'divided by their deviations' if scaled else 'not scaled'}, "
        f"{'weighted' if weighted else 'not weighted'}",
        "values": VALUES_ARE.get((analysed.kind, analysed.centred))
        or traits_of(analysed.kind).values + " of the centred matrix" * analysed.centred,
        "outcome": solution.outcome.name,
        "sentence": solution.outcome.sentence,
        "assurance": solution.assurance,
        "store": solution.store,
    }
    facts |= {} if analysed.rows is None else {"rows": analysed.rows}
    facts |= {} if analysed.row_weight is None else {"total_row_weight": analysed.row_weight}
    facts |= {} if share is None else {f"explained_share_of_the_{of.replace(' ', '_')}": share}
    return facts | ({} if solution.fingerprint is None else {"fingerprint": solution.fingerprint})
