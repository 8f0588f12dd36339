"""Passes in the processes of a cluster of Dask, and who starts, finds and watches them."""
