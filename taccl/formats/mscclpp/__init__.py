"""Execution plans of MSCCL++: written, run by the executor's rules, and registered."""
