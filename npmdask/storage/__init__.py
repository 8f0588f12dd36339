"""Where data and results live: Zarr layouts, ingest, generation, and folders that appear whole or not at all."""
