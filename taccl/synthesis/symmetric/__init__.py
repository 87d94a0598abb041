"""Fabrics that look the same from every rank: solved once, translated everywhere, never listed."""
