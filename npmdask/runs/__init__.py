"""Public names of runs, where they were before the core was a folder."""
