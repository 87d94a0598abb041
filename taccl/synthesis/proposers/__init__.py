"""Proposers: searches that offer schedules, and baselines that compete with them."""
