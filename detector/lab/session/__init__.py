"""The lab's own documents, in addition to those of a run."""
