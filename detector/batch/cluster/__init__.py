"""``batch --on ray``: a pool of workers that Ray places on a cluster.

job ── pool.py ══pipe══ ray_process.py ── workers.py ──Ray── actor.py ── worker.py
"""
