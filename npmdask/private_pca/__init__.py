"""Private principal components as an estimator."""
