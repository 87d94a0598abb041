"""Symmetries of problems: their quotient, and implicit synthesis on translation-symmetric fabrics."""
