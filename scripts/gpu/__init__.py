"""Parts of scripts/gpu_check: the plan, the findings, and one file per group of steps."""
