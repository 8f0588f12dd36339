"""Two fields of the same rows: what varies together in both (maximum covariance, canonical correlations)."""
