"""The programs in training/ import their modules from their own folder, and so do these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_torch_was():
    try:
        import torch
    except ImportError:  # the modules that need torch skip themselves
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)  # training sets it for the thread
