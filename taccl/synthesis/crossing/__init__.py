"""Synthesis in two levels: what crosses between nodes is planned first; what moves inside them fits in."""
