"""Robust components for npmdask: what it adds, by name. Importing this imports nothing else."""

from npmdask.core.features import Feature

ROBUST = Feature(
    name="robust",
    aspects={
        "row_limit": "npmdask_robust.aspects:RowLimit",
        "clip": "npmdask_robust.aspects:Clip",
        "signs": "npmdask_robust.signs:Signs",
    },
    settings={
        "row_limit": "npmdask_robust.settings:RowLimitTable",
        "clip": "npmdask_robust.settings:ClipTable",
        "signs": "npmdask_robust.settings:SignsTable",
    },
    routes={"signs": "npmdask_robust.signs:BY_SIGNS"},
    sources={"waves://": "npmdask_robust.waves:open_url"},
    kinds={"ranges": "npmdask_robust.ranges:RANGES"},
    tables={"ranges": "npmdask_robust.ranges:Asked"},
    commands={"ranges": "npmdask_robust.command:add_ranges"},
)
