"""The published pipeline: routing, ordering and contiguity, on the quotient by symmetry."""
