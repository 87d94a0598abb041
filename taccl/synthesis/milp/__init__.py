"""Models of TACCL's published stages (routing, ordering, contiguity) and a job shop, reduced by symmetry."""
