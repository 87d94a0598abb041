"""Why a sketch cannot work, what its clauses cost, and which edits help."""
