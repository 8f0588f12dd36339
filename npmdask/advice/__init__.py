"""Advice from finished answers: how many components mean something, which of them mix, what the data look like."""
