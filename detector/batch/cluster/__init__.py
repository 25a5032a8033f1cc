"""``batch --on ray``: the pool of a cluster, placed by Ray.

pool.py        the job's end: a pool by the process that speaks to Ray
ray_process.py that process: the only one that imports ray on the job's machine
workers.py     which workers there should be, and what each is doing
room.py        what a worker needs, and how many a cluster has room for
actor.py       a worker on a node: a pool of one process, as on one machine
cores.py       which cores of its node a worker takes
messages.py    what travels between them

    job ── pool.py ══pipe══ ray_process.py ── workers.py ──Ray── actor.py ── worker.py
"""
