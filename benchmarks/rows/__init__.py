"""One module per row (or pair of rows); each holds ``ROWS``."""
