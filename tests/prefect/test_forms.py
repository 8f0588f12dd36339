"""What the Prefect UI asks for: every parameter described, its limits those of the models, nothing unknown taken."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from npmdask.config import RunConfig, starter, table_of
from npmdask.errors import BadInputError, RefusedError
from tests.prefect.conftest import ROOT

LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
MODULES = (
    "npm npm_deflation streaming_update private_release distributed_private_pca topics latent two_fields benchmark"
).split()
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of Prefect's own


@pytest.fixture(scope="module")
def forms() -> dict[str, dict[str, Any]]:
    """The schema that the form of each deployment is made of."""
    from npmdask.prefect.schedules import FLOWS

    made = {name: flow.to_deployment(name="form") for name, flow in FLOWS.items()}
    return {name: deployment._parameter_openapi_schema.model_dump() for name, deployment in made.items()}


def tables(model: type[BaseModel] = RunConfig) -> Iterator[type[BaseModel]]:
    """The model and those of its fields that are tables."""
    yield model
    for field in model.model_fields.values():
        inner = table_of(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from tables(inner)


def parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A property, and what it may be in turn."""
    return [schema, *schema.get("anyOf", [])]


def test_every_flow_is_there(forms: dict[str, Any]) -> None:
    assert set(forms) == {name.replace("_", "-") for name in MODULES}


def test_every_property_is_described(forms: dict[str, Any]) -> None:
    """Fails for a parameter of a flow, or a key of a table, of which the form says nothing."""
    for name, form in forms.items():
        for where, schema in [(name, form), *form.get("definitions", {}).items()]:
            for key, said in schema["properties"].items():
                assert len(said.get("description") or "") > 2, f"{name}: {where}.{key}"


def test_limits_are_those_of_the_models(forms: dict[str, Any]) -> None:
    found = 0
    definitions = forms["npm"]["definitions"]
    assert set(definitions) == {model.__name__ for model in tables()}
    for model in tables():
        for key, field in model.model_fields.items():
            schema = definitions[model.__name__]["properties"][key]
            assert field.is_required() or "default" in schema, key
            for held in field.metadata:
                for limit, word in LIMITS.items():
                    if hasattr(held, limit):
                        assert any(part.get(word) == getattr(held, limit) for part in parts(schema)), f"{key}: {word}"
                        found += 1
    assert found > 15
    rank = parts(definitions["AlgorithmTable"]["properties"]["target_rank"])
    assert {"minimum": 1, "type": "integer"} in rank
    assert {"exclusiveMinimum": 0, "exclusiveMaximum": 1, "type": "number"} in rank
    assert forms["topics"]["properties"]["held_out"]["maximum"] == 0.5
    assert forms["npm-deflation"]["properties"]["more"]["minimum"] == 1


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [("source", "pth", "x"), ("algorithm", "target_rank", 0), ("stop", "tol", 2.0), ("privacy", "clip_norm", -1.0)],
)
def test_what_is_wrong_is_refused_by_the_form_and_by_the_flow(
    forms: dict[str, Any], table: str, key: str, value: Any
) -> None:
    """The server holds what is typed to the schema; a flow holds it to the model, as the command line does."""
    from prefect.utilities.schema_tools import is_valid_schema, validate
    from prefect.utilities.schema_tools.validation import ValidationError

    from npmdask.prefect.parameters import checked
    from npmdask.prefect.schedules import FLOWS

    given: dict[str, Any] = {
        "source": {"path": "a.zarr"},
        "algorithm": {"target_rank": 3},
        "stop": {"tol": 1e-8},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0},
    }
    assert is_valid_schema(forms["npm"]) is None
    validate({"config": given}, forms["npm"], raise_on_error=True)
    checked(FLOWS["npm"], {"config": given})
    given[table] |= {key: value}
    with pytest.raises(ValidationError):
        validate({"config": given}, forms["npm"], raise_on_error=True)
    with pytest.raises(BadInputError, match=key):
        checked(FLOWS["npm"], {"config": given})


def test_the_file_that_init_writes_says_the_same(forms: dict[str, Any]) -> None:
    text = starter(Path("first.toml"))
    for model in tables():
        for key, said in forms["npm"]["definitions"][model.__name__]["properties"].items():
            assert f"# {said['description']}" in text, key


@pytest.mark.parametrize("query", ["postgresql://u:hidden@h/d", "postgresql://u@h/d?password=hidden"])
def test_no_password_goes_through_prefect(query: str) -> None:
    from npmdask.prefect.parameters import at_store

    tables: dict[str, Any] = {"source": {"path": "a.zarr"}, "algorithm": {"target_rank": 3}}
    private = tables | {"privacy": {"epsilon": 1.0, "delta": 1e-6, "ledger": query}}
    with pytest.raises(BadInputError, match="NPMDASK_LEDGER") as refused:
        at_store(RunConfig.model_validate(private), "run")
    assert "hidden" not in str(refused.value)


def test_what_has_a_flow_of_its_own_is_sent_there() -> None:
    """Before anything is opened: nodes need not be there to be refused."""
    from npmdask.prefect.parameters import require_no_other_flow

    tables: dict[str, Any] = {"source": {"path": "a.zarr"}, "algorithm": {"target_rank": 3}}
    require_no_other_flow(RunConfig.model_validate(tables))
    others = {
        "private_release": {"privacy": {"epsilon": 1.0, "delta": 1e-6}},
        "distributed_private_pca": {"source": {"nodes": ["http://127.0.0.1:9001"]}},
    }
    for flow, more in others.items():
        with pytest.raises(RefusedError, match=f"`python -m flows.{flow}`"):
            require_no_other_flow(RunConfig.model_validate(tables | more))


def test_every_flow_has_a_keeper_and_a_script() -> None:
    """Fails for a flow that its keeper would not hear of, or whose script does more than run it."""
    from npmdask.prefect.heartbeat import tended
    from npmdask.prefect.schedules import FLOWS

    found = {}
    for file in (ROOT / "npmdask" / "prefect").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and "flow(" in "".join(map(ast.unparse, node.decorator_list)):
                found[node.name] = [ast.unparse(one).partition("(")[0] for one in node.decorator_list]
    assert found == {name: ["tended_flow"] for name in MODULES}
    beats = tended(len).__code__
    inner: list[Any] = [made.fn.__wrapped__ for made in FLOWS.values()]  # type: ignore[attr-defined]
    assert all(one.__code__ is beats for one in inner), "it sees errors before they are sentences"
    for name in MODULES:
        kinds = [type(node) for node in ast.parse((ROOT / "flows" / f"{name}.py").read_text()).body]
        assert kinds == [ast.Expr, ast.Import, *[ast.ImportFrom] * (len(kinds) - 3), ast.If], name
