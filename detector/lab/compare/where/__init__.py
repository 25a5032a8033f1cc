"""``compare --where A B``: finds the first stage where two configurations differ."""
