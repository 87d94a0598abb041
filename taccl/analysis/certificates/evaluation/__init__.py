"""Common code of evaluations of witnesses: problem data as plain numbers, in exact arithmetic."""
