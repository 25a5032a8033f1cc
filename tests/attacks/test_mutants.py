"""A short run of ``mutants.py``: no exit code 0 if frames are lost or ffmpeg reports damage."""

import pytest

from tests.attacks.mutants import DAMAGES, SEEDS, attack

DECODERS = ("auto", "av")
# The other verdicts come from differences between FFmpeg's versions (see docs/reading.md).
UNREPORTED = {"ffmpeg complains, exit 0", "frames lost, exit 0"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_damage_is_reported_by_exit_code(tmp_path, seed):
    outcomes = attack(tmp_path, len(DAMAGES), DECODERS, [seed])
    assert len(outcomes) == len(DAMAGES) * len(DECODERS)
    for outcome in outcomes:
        assert not UNREPORTED.intersection(outcome.verdicts), outcome
