"""Algorithms that see each row once: streaming power, Oja, MSG, Frequent Directions."""

from typing import Any

from npmdask.core import features

STREAM_REGISTRY: dict[str, type[Any]] = {
    name: features.found("stream_algorithms", name) for name in features.keys("stream_algorithms")
}
