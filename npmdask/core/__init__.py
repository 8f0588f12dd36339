"""The core: what a plain PCA or SVD is. It knows features by its tables alone (:mod:`npmdask.core.features`)."""
