"""Runs modules and scripts one after the other, each as ``python ARGUMENTS`` would, in one process that has imported
Prefect: that takes seconds each time. Standard input has a request a line; each is answered with its exit code."""

import json
import os
import runpy
import sys
from typing import Any

from npmdask.prefect.programs import apply_settings
from npmdask.prefect.server import send_what_is_queued


def run(arguments: list[str]) -> int:
    """``-m MODULE ...`` or ``-c CODE ...``."""
    how, what, *rest = arguments
    sys.argv = [what if how == "-m" else "-c", *rest]
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as told:
        return int(told.code) if isinstance(told.code, int) else int(told.code is not None)
    finally:
        send_what_is_queued()  # as a process does at its end
    return 0


def serve() -> None:
    apply_settings()  # Prefect reads them once, at the first request: that need not be a program of ours, which does it
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        asked: dict[str, Any] = json.loads(line)
        for descriptor, name in ((1, "out"), (2, "err")):
            file = os.open(os.path.join(asked["folder"], name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
        os.chdir(asked["folder"])
        before = dict(os.environ)
        os.environ |= asked["environment"]
        code = run(asked["arguments"])
        os.environ.clear()
        os.environ.update(before)
        sys.stdout.flush()
        sys.stderr.flush()
        print(code, file=answers, flush=True)


if __name__ == "__main__":
    serve()
