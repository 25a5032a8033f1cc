"""``audit``: find mistakes in a benchmark by its own numbers.

``read.py`` makes tables from files, ``documents.py`` from our own documents; ``rules/`` has one
function for each mistake; ``case.py`` runs them all. Numbers carry the interval of their rounding
(``numbers.py``): two figures contradict each other only if no rounding explains the difference.
"""
