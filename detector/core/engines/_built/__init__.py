"""Files that engines build once, and the proof that a run of this account wrote them."""
