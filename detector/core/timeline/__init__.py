"""Time the stages and waits of all threads: spans, histograms, NVTX ranges. Never prints."""
