"""Simulation of schedules: replay under other assumptions, use of time, and steady-state throughput."""
