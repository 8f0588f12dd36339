"""Dense linear algebra, random streams, moments and units: NumPy only, no files, no runs."""
