"""Settings of torch for the tests of training/."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _restore_torch_settings():
    try:
        import torch
    except ImportError:  # test modules that need torch are skipped
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)  # training turns it on for this thread
