"""Topologies: the value type, machine models, fabrics, and transforms."""
