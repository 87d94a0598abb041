"""Better schedules from schedules."""
