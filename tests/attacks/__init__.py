"""Attacks: hostile files, command lines, environments and timing, run against the real command.

case.py      one attack as data: files, command line, limits, exit codes; can be saved and read
kinds/       one module for each kind of attack, with a ``KIND`` that makes cases from a seed
mutate.py    damages bytes, text and documents for the kinds
inputs.py    the undamaged files
server.py    the process that runs cases: it imports the program once, and forks
running.py   lays out a case, runs it, and checks what it did and what it left behind
guided.py    coverage-guided damage for the program's own binary readers, in one process
mutants.py   damaged videos, read by us and by ffmpeg
long_run.py  runs all kinds for some minutes, prints the table, and keeps the folders of failures

``scripts/attack`` is the long run; ``test_attacks.py`` runs a few fixed cases.
"""
