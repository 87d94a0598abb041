"""Implicit schedules: one rank's pattern of sends, and the translations that repeat it for every rank."""
