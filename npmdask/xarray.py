"""Empirical orthogonal functions of gridded data, and coupled patterns of two fields, in the words of xeofs.

>>> from npmdask.xarray import EOF
>>> maps = EOF(n_modes=10, use_coslat=True).fit(field, dim="time").components()  # doctest: +SKIP
"""

from npmdask.estimators.eof import EOF, HilbertEOF
from npmdask.two_fields.coupled import CCA, MCA

__all__ = ["CCA", "EOF", "MCA", "HilbertEOF"]
