"""Schedules: columns of transfers, their exact times, and how they combine."""
