"""What a mechanism is: the border between what touched the data and what is public."""

from __future__ import annotations

from typing import Any, Protocol

from npmdask.numerics.subspaces import Block


class Mechanism(Protocol):
    """Turns a product into something that may be released.

    ``block`` is the X of the product A X: public, as it was released (or drawn from a public seed) before. The
    noise is a function of ``entropy`` (a seed in simulations, a secret key in private runs), of the step and of
    what is public: a step that is done again after a crash releases the same block.
    """

    def release(self, product: Block, *, block: Block, entropy: Any, step: int) -> Block: ...
    def event(self) -> dict[str, Any]: ...
    @property
    def stddev(self) -> float: ...
