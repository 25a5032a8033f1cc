"""RT-DETRv2, by transformers: the same exports as RT-DETR's."""

from __future__ import annotations

from rt_detr import run

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"

if __name__ == "__main__":
    run(2)
