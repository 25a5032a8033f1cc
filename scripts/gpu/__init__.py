"""Parts of scripts/gpu_check: the plan, the findings, and a module for each group of steps."""
