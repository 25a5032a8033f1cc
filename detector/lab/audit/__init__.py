"""``audit``: find mistakes in a benchmark by its own numbers.

``read.py`` makes tables from files, ``documents.py`` from our own documents. ``rules/`` has one
function for each mistake; ``case.py`` runs all rules. Each number is read as the interval that its
rounding allows (``numbers.py``). Two figures contradict each other if their intervals do not meet.
"""
