"""Search for the number of components that a share of the variance needs."""
