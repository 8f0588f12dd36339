"""How many components a share of the variance needs."""
