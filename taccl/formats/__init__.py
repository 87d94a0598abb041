"""Files: one format per module, each with load, dump or both."""
