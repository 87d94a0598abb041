"""The published pipeline on the problem folded by its symmetry, and the same decisions as one job shop."""
