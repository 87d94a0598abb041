"""Explanations of a sketch: why it is infeasible, what its clauses cost, and which edits help."""
