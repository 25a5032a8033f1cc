"""What the program did on the day of recording: exit codes, keys, rows, file names and drawn
pictures.

commands.py  the command lines, as data
inputs.py    the files that they get: tiny clips, pictures and networks with known answers
running.py   runs them, two at a time
observing.py what a run printed and left behind, as one JSON document
masks.py     what depends on the machine or is a sentence, each with its reason
differing.py what differs from the recording, as lines to read
record.py    writes the recordings anew: only for a deliberate change of behaviour

Nothing here imports the program: it is known by its command line and its files alone.
"""
