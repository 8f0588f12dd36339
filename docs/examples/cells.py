"""
Blood cells
===========

700 cells of peripheral blood that 10x Genomics published (the file is in scanpy's wheel), by their counts of 765
genes. The components lie where scanpy puts them, so that its plots work.
"""

import warnings
from importlib.util import find_spec
from pathlib import Path

import anndata
import matplotlib.pyplot as plt

import npmdask.anndata

warnings.simplefilter("ignore")  # anndata's: the file is of an early version
path = Path(find_spec("scanpy").origin).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"
cells = anndata.read_h5ad(path)
cells = cells.raw.to_adata()  # all genes, log counts, sparse
npmdask.anndata.pca(cells, 20)
print(cells.uns["pca"]["variance_ratio"][:5].round(3))

figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
for name, group in cells.obs.groupby("bulk_labels", observed=True):
    chosen = cells.obs_names.get_indexer(group.index)
    axis.scatter(*cells.obsm["X_pca"][chosen, :2].T, s=8, label=name)
axis.set(xlabel="PC 1", ylabel="PC 2")
axis.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1))
