"""``compare --where A B``: the first stage at which two configurations differ."""
