"""Random families of problems: whatever an answer states is held against an oracle that shares no code with npmdask.

Each module is a family: ``problem`` draws one, ``check`` asks npmdask and compares. ``python -m tests.theory.families``
runs them all (`make certificates`), ``test_draws.py`` a few of each.
"""
