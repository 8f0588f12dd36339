"""From what a person asks of private data to a problem whose every parameter is public, and back from its store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from npmdask.core import features
from npmdask.core.aspects import kept_aspects
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Earlier, Method, Problem, Request, Route, ranks_of
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import without_low_rank
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, first_of, require
from npmdask.privacy.matrix_release import COVARIANCE, make_covariance, make_power
from npmdask.privacy.mechanisms import EntriesGaussian
from npmdask.privacy.private_power import begun_options, with_options
from npmdask.privacy.public_rule import public_rule
from npmdask.privacy.release import PrivateRelease
from npmdask.privacy.request import Privacy
from npmdask.privacy.tensor_release import make_tensor
from npmdask.tensors.route import TENSOR, require_tensor_algorithm

PLAIN = ("auto", "power")


class PrivateRoute(Route):
    """A private run: every parameter is public, and nothing is chosen by looking at the data."""

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return what would depend on the data without being charged; "" where nothing does."""
        known = request.algorithm in PLAIN or _method(request) is not None
        other = first_of({"algorithm": not known, "mechanism": request.mechanism != "none"})
        why = "a private run makes a fixed number of releases, whatever their results"
        refused = {
            'a private run takes whole numbers for target_rank and iteration_rank: a share or "auto" would be chosen '
            "by looking at the data, and the choice would reveal something about them": (
                not isinstance(request.target_rank, int) or request.iteration_rank == "auto"
            ),
            "a private run does not centre or scale: column means and deviations are statistics of the data that would "
            "have to be released too. Subtract public means when the data are written, or leave the options out": (
                request.center or request.scale
            ),
            "a private run stops after max_steps releases; a tolerance would depend on the data: leave tol out": (
                request.tol is not None
            ),
            without_low_rank(request.low_rank_tol, why): True,
            f"{other} = {getattr(request, other, '')!r} is not for private runs: leave it out, the [privacy] table "
            "chooses the noise": other,
            "a private run starts from its public seed: leave the earlier run (warm start, deflation) out": (
                any(earlier)
            ),
            f"{source.path} was ingested so that it may hold missing values (whether it does was not checked): set "
            "missing = 'fill' with a public missing_fill to replace them": source.gaps and request.reading is None,
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem. Raises BadInputError for steps or columns that its algorithm does not have."""
        privacy, method = request.privacy, _method(request)
        assert isinstance(privacy, Privacy)
        if source.kind == "tensor":
            require_tensor_algorithm(source, request)
        own = TENSOR if source.kind == "tensor" else request.algorithm if method and method.counts_steps else ""
        given = request.max_steps is not None or request.iteration_rank is not None
        wrong = {
            f"max_steps and iteration_rank do not apply to {own}: it finds one direction after the other, and the "
            "number of releases follows from its options (steps, batch, or restarts and iterations); leave them out": (
                own and given
            ),
            "max_steps and iteration_rank are for the private power method; the covariance is released once, with all "
            'columns: leave them out, or set algorithm = "power"': request.algorithm == COVARIANCE and given,
        }
        require(not (why := first_of(wrong)), why)
        rule = public_rule(request.aspects, privacy, oracle=method is not None and method.counts_steps)
        options, source = request.options or {}, source.held_to_digests()
        if source.kind == "tensor":
            recipe: Any = make_tensor(source, privacy, options, int(request.target_rank), request.seed)
        elif method is not None and method.make is not None:
            recipe = method.make(source, request, rule)
        else:
            recipe = make_power(source, privacy, *ranks_of(source, request, 0), request.max_steps, rule)
            recipe = replace(recipe, algorithm=with_options(recipe.algorithm, request.options))
        made = attributes(recipe, "algorithm", "mechanism", "rule")
        return Problem(source=source, request=request, recipe=recipe, **made)

    def release(self, problem: Problem, session: Session) -> PrivateRelease:
        """Return what is released, with its noise."""
        return PrivateRelease(problem, session)

    def restored(self, held: RunStore, spec: dict[str, Any]) -> Problem:
        """Return the problem that run.json of a private run describes."""
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


def _method(request: Request) -> Method | None:
    """Return the algorithm of a feature that is asked for; None of the private power method."""
    return None if request.algorithm in PLAIN else features.found("algorithms", request.algorithm)


def require_run(path: Path, spec: dict[str, Any]) -> None:
    """Raise BadInputError for what `npmdask perturb` keeps beside the copy that it is writing."""
    if spec.get("algorithm", {}).get("name") == EntriesGaussian.name:
        raise BadInputError(
            f"{path} belongs to a noisy copy that is not written to its end: run the same `npmdask perturb` again"
        )


METHOD = Method(
    private=True,
    takes_options=False,
    of_any_rank=True,
    make=lambda source, asked, rule: make_covariance(source, asked.privacy, ranks_of(source, asked, 0)[0], rule),
)
PRIVATE = PrivateRoute()
