"""Estimators of components in the manner of scikit-learn, and of fields on a grid."""
