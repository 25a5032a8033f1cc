"""Test kill -9 while recording; ``scripts/live_kill`` repeats it and measures the seconds lost."""

from pathlib import Path

import pytest

from tests.live.killed_runs import check_kills, check_stops
from tests.live.killing import holds_pictures, kill_once, make_source


@pytest.mark.slow
def test_every_file_plays_after_a_kill(tmp_path: Path) -> None:
    """``kill_once`` checks the content of the files. A new file begins every 3 s."""
    stream, live = make_source(tmp_path), tmp_path / "live"
    for loss in kill_once(live, stream, 3.7, lambda: holds_pictures(live)):
        assert loss.files >= 1
        assert loss.partial <= 2  # an old file that still waits for its last sound, and the new one
        # A busy machine may have written few pictures before the kill.
        assert loss.kept + loss.dropped > 0
    assert [*(live / "copy" / "video").glob("*.ass")]


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize(("check", "times"), [(check_kills, 3), (check_stops, 2)])
def test_files_of_killed_or_stopped_runs_play(tmp_path: Path, check, times) -> None:
    """Run the whole command several times. The last run ends normally."""
    findings = check(tmp_path, times, 7)
    assert findings.wrong == []
    assert findings.finished > 0
