"""Percentiles of recorded calls: the ledger's own, CSV's and the page's are of one kind."""

from array import array

import numpy as np
import pytest

from detector.core.timeline.histogram import Histogram
from detector.lab.analysis.loop.activities import percentiles


@pytest.mark.parametrize("count", [1, 4, 5, 19, 20, 80, 199, 200, 401])
def test_percentiles_are_the_ledgers_own(count):
    """Nearest rank: one of the values. The ledger's histogram rounds it, by 1% at most."""
    values = np.random.default_rng(count).integers(1_000_000, 90_000_000, count)
    histogram = Histogram()
    histogram.add_many(array("q", values.tolist()))
    for name, found in percentiles(values.astype(np.float64)).items():
        ledger = histogram.percentile(int(name[1:]))
        assert (found is None) == (ledger is None), name
        if found is not None:
            assert found in values
            assert found == pytest.approx(ledger, rel=0.0101)
