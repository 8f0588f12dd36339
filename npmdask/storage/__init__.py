"""Public names of storage, where they were before the core was a folder."""
