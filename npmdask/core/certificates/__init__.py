"""Certificates: how wrong an answer can be, from products that were made anyway. NumPy only; no file, no data."""
