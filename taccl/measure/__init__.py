"""Machines as they are measured: logs of benchmarks, and a cost model fitted to them."""
