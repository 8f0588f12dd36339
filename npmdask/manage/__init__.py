"""Runs from outside: reports, exports, inspection, status, metrics, garbage collection."""
