"""One pass over the data: threads, processes and clusters through Dask, within a memory limit."""
