"""Measured machines: benchmark logs, and a cost model fitted to them."""
