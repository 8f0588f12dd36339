"""Store data and results: Zarr layouts, ingest, generation, and folders that appear whole or not at all."""
