"""Mixed-integer linear models, and the solvers for them, each run in a worker process."""
