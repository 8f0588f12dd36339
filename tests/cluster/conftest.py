"""A cluster of processes, as a fixture."""

from tests.machines import machines

__all__ = ["machines"]
