"""``audit``: what is wrong with a benchmark, by its own numbers.

``read.py`` makes tables of files, ``ours.py`` of our own documents; ``rules/`` has one small
function for each mistake; ``audit.py`` asks them all. Numbers carry the interval that their
rounding leaves open (``numbers.py``): two figures contradict each other only where no rounding
explains it.
"""
