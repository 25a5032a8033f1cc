"""Build the program's graphs with the real parser and builder, which need no GPU."""

import re

import pytest

from detector.core.engines.trt.edition import read_header

trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")

from tests.conftest import night  # noqa: E402
from tests.engines.trt.real_builds import GRAPHS, PRECISIONS, build  # noqa: E402

PORTABLE_TARGETS = ("8.0", "8.6", "8.9", "12.0", "12.1")  # the targets of a plan for any GPU
NO_CONVOLUTION = "none of its layers can be int8"
# Refusals by the library or the conversion: graph and precision -> the message that a user sees.
REFUSED = {
    (name, "int8"): NO_CONVOLUTION
    for name in GRAPHS
    if name.endswith("-export") and not name.startswith(("yolox", "nanodet", "yunet"))
} | {
    (
        "nms-inside-export",
        precision,
    ): r"NonMaxSuppression.*--engine ort|Reshape\) has the batch in its constants"
    for precision in PRECISIONS
    if precision != "int8"
}
# Outside the nightly run, the small exports and the model street are built in all precisions. Each
# other network takes seconds, so it is built in only one precision.
TURNS = [name for name in GRAPHS if not name.endswith("-export") and name != "street"]
CASES = [
    (name, precision)
    if name not in TURNS or TURNS.index(name) % len(PRECISIONS) == at
    else night(name, precision)
    for name in GRAPHS
    for at, precision in enumerate(PRECISIONS)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_each_graph_is_parsed_and_built_for_its_targets(tmp_path, name, precision):
    for row in build(name, precision, tmp_path):
        if expected := REFUSED.get((name, precision)):
            assert row.refusal is not None
            assert re.search(expected, row.refusal)
            assert "\n" not in row.refusal
            continue
        assert row.refusal is None
        header = read_header(row.plan)
        assert header is not None
        assert (header.version, header.size) == (trt.__version__, len(row.plan))
        asked = PORTABLE_TARGETS if row.targets == "any" else tuple(row.targets.split("+"))
        assert header.targets == asked
