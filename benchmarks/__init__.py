"""Benchmarks: frozen instances, and one driver per question."""
