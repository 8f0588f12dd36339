"""A run: its border to the data, and the noise that is no promise."""
