"""What the UI is shown of a stream, without a server."""

from dataclasses import replace

import pytest

from npmdask.streaming.metrics import Measurement

pytestmark = pytest.mark.filterwarnings("default")  # of Prefect's own

BARE = Measurement(
    rows=7,
    batches=1,
    steps=0,
    rows_used=0,
    rank=1,
    batch_rows=None,
    mean_batch_rows=None,
    step_size=None,
    condition=None,
    values=None,
)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 30, 400])
def test_pages_of_streams_are_small_enough_for_the_database(count: int) -> None:
    """Fails when a long stream makes an artifact that grows with it, or a curve is left out."""
    from npmdask.prefect.publish import measurements_table, pictures

    made = [
        replace(BARE, rows=256 * i, suboptimality=1 / i, max_sin_theta=0.5 / i, change=0.1 / i)
        for i in range(1, count + 1)
    ]
    text = pictures(tuple(made))
    assert text.count("![convergence](data:image/svg+xml;base64,") == 2
    assert len(text) < 120_000
    assert len(measurements_table(tuple(made)).splitlines()) <= 22


def test_what_is_not_known_is_left_out() -> None:
    """Fails when None is formatted, or a plot without a point is drawn."""
    from npmdask.prefect.publish import measurement_line, measurements_table, pictures

    assert measurement_line(BARE) == "7 rows: rank 1" and pictures((BARE,)) == ""
    assert measurements_table((BARE,)).splitlines()[-1] == "| 7 | 1 |  |  |  |"
    assert "change, max sin θ 1.00e+00" in measurement_line(replace(BARE, change=1.0))
