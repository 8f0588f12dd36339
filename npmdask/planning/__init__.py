"""Predict what a run will need before its first pass: memory, passes, steps, privacy."""
