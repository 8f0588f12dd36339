"""PCA of annotated data, in the words of scanpy.

>>> import npmdask.anndata
>>> npmdask.anndata.pca(adata, 50, memory="2GiB")  # doctest: +SKIP
"""

from npmdask.estimators.annotated import pca, project

__all__ = ["pca", "project"]
