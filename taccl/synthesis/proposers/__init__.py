"""Proposers of schedules: searches, and baselines that compete with them."""
