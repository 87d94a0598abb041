"""Compiled loops of the search, and the arrays that they work on."""
