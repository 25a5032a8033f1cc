"""``detect-video batch``: many inputs, one job.

split.py   where a long file may be cut into parts, and whether it may
part.py    detects one part
join.py    makes one run's outputs of the parts'
"""
