"""Schedules: columns of transfers, their exact times, and transformations of them."""
