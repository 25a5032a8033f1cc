"""``batch --on ray``: the pool of a cluster, placed by Ray.

job ── pool.py ══pipe══ ray_process.py ── workers.py ──Ray── actor.py ── worker.py
"""
