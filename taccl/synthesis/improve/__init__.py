"""Improvement of schedules by ruin and recreate."""
