"""``compare --where A B``: find the first stage where two configurations differ."""
