"""Gram matrices that are kept: of the whole, of groups, and of resampled data."""
