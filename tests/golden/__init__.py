"""The program's recorded behaviour: exit codes, keys, rows, file names and drawn pictures.

commands.py  the command lines, as data
inputs.py    their input files: tiny clips, pictures and networks with known answers
running.py   runs them, two at a time
observing.py the output and files of a run, as one JSON document
masks.py     values that are not compared, each with its reason
differing.py differences from the recording, as lines to read
record.py    rewrites the recordings: only for a deliberate change of behaviour

No file here imports the program: these tests use only its command line and its files.
"""
