"""The published pipeline on the quotient by symmetry, and the same decisions as one job shop."""
