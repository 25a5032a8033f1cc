"""One run: options become a plan (plan.py), the loop runs, and outputs and session are written
(detect.py). choose.py and prepare.py decide which engine runs which graph."""
