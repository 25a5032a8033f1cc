"""The peak memory of a graph's tensors."""

import numpy as np

from detector.core.models.graph.build import GraphBuilder, peak_bytes


def test_peak_bytes_is_the_largest_sum_of_live_tensors():
    """A picture of 3 x 4 x 4: at first, the cast and its transpose are live (48 values each). At
    the end, two maps of 2 x 4 x 4 and their sum are live."""
    builder = GraphBuilder("g")
    x = builder.input_u8(1, 4, 4)
    weights = builder.constant("w", np.zeros((2, 3, 1, 1), np.float32))
    first = builder.add("Conv", "a", [x, weights])
    second = builder.add("Relu", "b", [first])
    total = builder.add("Add", "c", [first, second])
    model = builder.model([total])
    assert peak_bytes(model) == 4 * max(48 + 48, 48 + 32, 32 + 32 + 32)
