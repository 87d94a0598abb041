"""Comparing and exploring: many runs as one table, and the cache of their results."""
