"""Verifier of schedules against their problem, with arithmetic that no scheduler uses."""
