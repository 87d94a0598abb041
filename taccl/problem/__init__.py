"""Problems: a topology, a collective, chunk sizes, and the clauses of a sketch."""
