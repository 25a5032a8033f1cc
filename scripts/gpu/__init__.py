"""Parts of scripts/gpu_check: the plan, what was found, and one file a group of steps."""
