"""Communication sketches: read, checked, and applied to a topology and a collective."""
