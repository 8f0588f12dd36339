"""Empirical orthogonal functions of gridded data, and coupled patterns of two fields, in the words of xeofs.

>>> from npmdask.xarray import EOF
>>> maps = EOF(n_modes=10, use_coslat=True).fit(field, dim="time").components()  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from npmdask.estimators.eof import EOF, EOFRotator, HilbertEOF, HilbertEOFRotator

if TYPE_CHECKING:
    from npmdask.two_fields.coupled import CCA, MCA, MCARotator

__all__ = [
    "CCA",
    "EOF",
    "MCA",
    "ComplexEOF",
    "ComplexEOFRotator",
    "EOFRotator",
    "HilbertEOF",
    "HilbertEOFRotator",
    "MCARotator",
]
ComplexEOF, ComplexEOFRotator = EOF, EOFRotator  # of complex numbers


def __getattr__(name: str) -> Any:
    """Import a class for two fields when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'npmdask.xarray' has no attribute {name!r}")
    from npmdask.two_fields import coupled

    value = globals()[name] = getattr(coupled, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
