"""Lower bounds, each with a witness that arithmetic alone checks."""
