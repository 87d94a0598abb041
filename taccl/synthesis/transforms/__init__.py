"""Transforms of a problem into one that is easier to search, and of its schedule back."""
