"""From what a person asks of private data to a problem whose every parameter is public, and back from its store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from npmdask.core import features
from npmdask.core.aspects import kept_aspects
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.build import make_problem, ranks_of
from npmdask.core.runs.problem import Method, Problem, Request
from npmdask.core.runs.stopping_rules import refuse_low_rank
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.privacy.matrix_release import COVARIANCE, CovarianceRecipe, make_covariance, make_power
from npmdask.privacy.mechanisms import EntriesGaussian
from npmdask.privacy.private_power import begun_options, with_options
from npmdask.privacy.public_rule import PublicRule, public_rule
from npmdask.privacy.request import Privacy
from npmdask.privacy.tensor_release import make_tensor
from npmdask.tensors.route import TENSOR, require_tensor_algorithm

PLAIN = ("auto", "power")


def problem_of(source: Source, request: Request, earlier: object) -> Problem:
    """The problem of a private run: every parameter is public, and nothing is chosen by looking at the data."""
    assert request.privacy is not None
    privacy: Privacy = request.privacy
    _require_public(source, request, earlier)
    method = None if request.algorithm in PLAIN else features.found("algorithms", request.algorithm)
    rule = public_rule(request.aspects, privacy, oracle=method is not None and method.counts_steps)
    options, source = request.options or {}, source.held_to_digests()
    if source.kind == "tensor":
        recipe: Any = make_tensor(source, privacy, options, int(request.target_rank), request.seed)
    elif method is not None:
        recipe = method.make(source, request, rule)
    else:
        recipe = make_power(source, privacy, *ranks_of(source, request, 0), request.max_steps, rule)
        recipe = replace(recipe, algorithm=with_options(recipe.algorithm, request.options))
    return Problem(
        source=source, request=request, recipe=recipe, **attributes(recipe, "algorithm", "mechanism", "rule")
    )


def _require_public(source: Source, request: Request, earlier: object) -> None:
    """Refuse options of a private run that would depend on the data without being charged."""
    if isinstance(request.target_rank, float) or request.iteration_rank == "auto":
        raise RefusedError(
            'a private run takes whole numbers for target_rank and iteration_rank: a share or "auto" would be chosen '
            "by looking at the data, and the choice would reveal something about them"
        )
    if request.center or request.scale:
        raise RefusedError(
            "a private run does not centre or scale: column means and deviations are statistics of the data that would "
            "have to be released too. Subtract public means when the data are written, or leave the options out"
        )
    if request.tol is not None:
        raise RefusedError(
            "a private run stops after max_steps releases; a tolerance would depend on the data: leave tol out"
        )
    refuse_low_rank(request.low_rank_tol, "a private run makes a fixed number of releases, whatever their results")
    if source.kind == "tensor":
        require_tensor_algorithm(source, request)
    method = None if request.algorithm in PLAIN else features.found("algorithms", request.algorithm)
    if request.mechanism != "none" or (request.algorithm not in PLAIN and method is None):
        raise RefusedError(
            f"algorithm = {request.algorithm!r} and mechanism = {request.mechanism!r} are not for private runs: leave "
            "both out, the [privacy] table chooses the noise"
        )
    if source.kind == "tensor" or (method is not None and method.counts_steps):
        _require_own_steps(request, TENSOR if source.kind == "tensor" else request.algorithm)
    if request.algorithm == COVARIANCE and (request.max_steps is not None or request.iteration_rank is not None):
        raise BadInputError(
            "max_steps and iteration_rank are for the private power method; the covariance is released once, with all "
            'columns: leave them out, or set algorithm = "power"'
        )
    if earlier is not None:
        raise RefusedError(
            "a private run starts from its public seed: warm starts and deflation are not offered for it"
        )


def _require_own_steps(request: Request, algorithm: str) -> None:
    """Refuse what oracles of records and the tensor power method choose by their own options."""
    if request.max_steps is not None or request.iteration_rank is not None:
        raise BadInputError(
            f"max_steps and iteration_rank do not apply to {algorithm}: it finds one direction after the other, and "
            "the number of releases follows from its options (steps, batch, or restarts and iterations); leave them out"
        )


def require_run(path: Path, spec: dict[str, Any]) -> None:
    """Raise BadInputError for what `npmdask perturb` keeps beside the copy that it is writing."""
    if spec.get("algorithm", {}).get("name") == EntriesGaussian.name:
        raise BadInputError(
            f"{path} belongs to a noisy copy that is not written to its end: run the same `npmdask perturb` again"
        )


def restored(held: RunStore, spec: dict[str, Any]) -> Problem:
    """The problem that run.json of a private run describes."""
    require_run(held.path, spec)
    algorithm = spec["algorithm"]
    named = algorithm["name"] in features.keys("algorithms")  # which count their steps themselves
    request = Request(
        target_rank=algorithm["target_rank"],
        algorithm=algorithm["name"] if named else "power",
        options=begun_options(algorithm),
        iteration_rank=None if named else algorithm["iteration_rank"],
        max_steps=None if named else spec["stop"]["max_steps"],
        seed=spec["run"]["seed"],
        privacy=Privacy(**spec["privacy"]),
        aspects=kept_aspects(held, spec),
    )
    return make_problem(open_source(spec["source"], spec["data"]["kind"], exact=False), request)


def _covariance(source: Source, request: Request, rule: PublicRule) -> CovarianceRecipe:
    assert request.privacy is not None
    return make_covariance(source, request.privacy, ranks_of(source, request, 0)[0], rule)


METHOD = Method(private=True, takes_options=False, of_any_rank=True, make=_covariance)
