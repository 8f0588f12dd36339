"""A configuration as text: commented TOML, and the file that ``npmdask init`` writes."""

from __future__ import annotations

import json
from typing import Any

from npmdask.config import RunConfig
from npmdask.config_tables import AlgorithmTable, RunTable, SourceTable, table_of


def render_config(config: RunConfig) -> str:
    """A configuration as commented TOML; options left open are there as comments."""
    lines = []
    for table, field in RunConfig.model_fields.items():
        model, values = table_of(field.annotation), getattr(config, table)
        off = "# " if values is None else ""
        lines += [f"# {field.description}", f"{off}[{table}]"]
        for name, option in model.model_fields.items():
            value = option.get_default() if values is None else getattr(values, name)
            known = (value is not None and not option.is_required()) or (values is not None and value is not None)
            text = f"{off}{name} = {_toml(value)}" if known else f"# {name} ="
            lines.append(f"{text:<34}# {option.description}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """Strings, booleans and numbers are written the same in TOML as in JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(held)}" for key, held in value.items()) + " }"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def starter(name: str) -> str:
    """The file that ``npmdask init NAME`` writes."""
    config = RunConfig(
        source=SourceTable(path=f"{name}.zarr"),
        algorithm=AlgorithmTable(target_rank=10),
        run=RunTable(memory="1GiB", store=f"runs/{name}"),
    )
    return f"# npmdask run {name}.toml\n\n" + render_config(config)
