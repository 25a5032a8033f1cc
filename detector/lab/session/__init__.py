"""Types, readers and writers of the documents that the lab adds to those of a run."""
