"""Stores that appear whole: dense, packed symmetric, packed tensor, CSR, and the journal of what is written."""
