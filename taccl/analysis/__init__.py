"""Analysis of schedules: an independent verifier, proven lower bounds, and simulation."""
