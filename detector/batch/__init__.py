"""``batch``: a job over many videos, which is resumed where it stopped.

listing.py    SOURCES -> items, and their names
settings.py   what every worker obeys, resolved once
stores.py     what addresses (s3://, gs://, http://) name
layout.py     the names of what lies in an output; who may be at work there
places.py     where results go, and how they come to stand there whole
bucket.py     the same in an object store
manifest.py   which items there are, and what became of each
plan.py       what is to be done of what is listed
start.py      how a job begins, and on which pool
job.py        the job: hands items to a pool until none is left
pool.py       what a pool promises
local.py      the pool of this machine, worker.py: one process of it
cluster/      the pool of a cluster
item.py       one item, from its source to its marker
dataset.py    all detections as one Parquet dataset
progress.py   how far it is
looking.py    --status and --dry-run

A long file may be detected in parts:

long_items.py which files are, and what comes next for each
split.py      where a file may be cut, and whether it may
part.py       detects one part
join.py       makes one run's outputs of the parts'
pieces.py     where parts lie until they are joined
"""
