"""Spanning trees that fill a machine: capacities, switches split off, and the packing of trees."""
