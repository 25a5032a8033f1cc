"""``batch --on ray``: the pool of a cluster, with Ray for placing workers and hearing of lost ones.

pool.py        which workers there should be, and what each is doing; it knows no Ray
room.py        what a worker needs, and how many a cluster has room for
connection.py  the job's end of the process that speaks to Ray
ray_process.py that process: the only one that imports ray on the job's machine
actor.py       a worker on a node: a pool of one process, as on one machine
cores.py       which cores of its node a worker takes
messages.py    what travels between them

    job ── pool.py ── connection.py ══pipe══ ray_process.py ──Ray── actor.py ── worker.py
"""
