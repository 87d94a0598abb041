"""Suggested sketches for problems without one, and the choice of the number of chunks."""
