"""RT-DETRv2, by transformers: the same exports as RT-DETR's."""

from __future__ import annotations

from from_transformers import REQUIREMENTS as REQUIREMENTS
from rt_detr import LICENCE as LICENCE
from rt_detr import run

if __name__ == "__main__":
    run(2)
