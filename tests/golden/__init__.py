"""The program's recorded behaviour: exit codes, keys, rows, file names and drawn pictures.

commands.py  the command lines, as data
inputs.py    their input files: tiny clips, pictures and networks with known answers
running.py   runs them, two at a time
observing.py what a run printed and left behind, as one JSON document
masks.py     what depends on the machine or is a sentence, each with its reason
differing.py differences from the recording, as lines to read
record.py    rewrites the recordings: only for a deliberate change of behaviour

Nothing here imports the program: these tests know only its command line and its files.
"""
