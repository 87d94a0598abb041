"""Files of ASTRA-sim: execution traces, and network files."""
