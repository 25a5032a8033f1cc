"""Attacks: hostile files, command lines, surroundings and moments, run against the real command.

case.py      one attack as data: files, command line, limits, exit codes; saved to a folder and back
kinds/       one module a kind of attack; each holds a ``KIND`` that makes cases from a seed
mutate.py    damage to bytes, text and documents, of which the kinds are made
inputs.py    the whole files that are damaged
server.py    the process that runs cases: it has imported the program, and forks
running.py   lays out a case, has it run, and judges what it did and left
guided.py    coverage-guided damage for the program's own binary readers, in one process
mutants.py   damaged videos, our reading held against ffmpeg's
long_run.py  all kinds for some minutes, the table, and the folders of what failed

``scripts/attack`` is the long run. ``test_attacks.py`` is the small fixed part of it.
"""
