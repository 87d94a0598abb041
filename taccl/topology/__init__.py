"""Topologies: the value type, machine models, fabrics, and pure transforms of them."""
