"""``audit``: what is wrong with a benchmark, by its own numbers.

``read.py`` makes tables of files, ``ours.py`` of our own documents; ``rules/`` has one function for
each mistake; ``case.py`` asks them all. Numbers carry the interval of their rounding
(``numbers.py``): two figures contradict each other only if no rounding explains it.
"""
