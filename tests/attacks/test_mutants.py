"""A part of ``python -m tests.attacks.mutants``: damage never passes for success."""

import pytest

from tests.attacks.mutants import SEEDS, WOUNDS, attack

DECODERS = ("auto", "av")
# More or fewer frames are differences of FFmpeg's versions; docs/reading.md explains each.
WRONG = {"ffmpeg complains, exit 0", "frames lost, exit 0"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_one_mutant_of_each_kind(tmp_path, seed):
    outcomes = attack(tmp_path, len(WOUNDS), DECODERS, [seed])
    assert len(outcomes) == len(WOUNDS) * len(DECODERS)
    for outcome in outcomes:
        assert not WRONG.intersection(outcome.verdicts), outcome
