"""Percentiles of recorded calls agree with those of the ledger, which uses a histogram."""

from array import array

import numpy as np
import pytest

from detector.core.timeline.histogram import Histogram
from detector.lab.analysis.loop.activities import percentiles


@pytest.mark.parametrize("count", [1, 4, 5, 19, 20, 80, 199, 200, 401])
def test_percentiles_are_the_same_as_in_the_ledger(count):
    """A nearest-rank percentile is one of the values. The ledger rounds it by up to 1%."""
    values = np.random.default_rng(count).integers(1_000_000, 90_000_000, count)
    histogram = Histogram()
    histogram.add_many(array("q", values.tolist()))
    for name, value in percentiles(values.astype(np.float64)).items():
        ledger = histogram.percentile(int(name[1:]))
        assert (value is None) == (ledger is None), name
        if value is not None:
            assert value in values
            assert value == pytest.approx(ledger, rel=0.0101)
