"""``compare --where A B``: the first stage at which two configurations differ.

words.py       what the user typed becomes two sides
search.py      stage by stage, each with the same input on both sides
graph.py       inside the graph: a binary search over the tensors that both sides have
difference.py  how far two arrays are apart, and what is rounding
kinds.py       what a difference looks like: swapped colours, a shift, a sigmoid too many...
picture.py     where it is, as a PNG
"""
