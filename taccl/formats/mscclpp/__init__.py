"""Execution plans of MSCCL++: writer, simulated executor, and registration."""
