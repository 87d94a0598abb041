"""Sketches for those who have none: what a topology looks like, and the guidance that it calls for."""
