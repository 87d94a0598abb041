"""Symmetries of problems: their quotient, and fabrics that look alike from every rank."""
