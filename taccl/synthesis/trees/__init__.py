"""Packing of spanning trees: capacities of a topology, removal of its switches, and the packing itself."""
