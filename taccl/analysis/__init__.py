"""Judging schedules: an independent verifier, and proven lower bounds."""
