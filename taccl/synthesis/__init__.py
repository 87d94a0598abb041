"""Synthesis of schedules: `synthesize`, its proposers, transforms of problems, and explanations."""

from taccl.synthesis.proposing import Proposer, register, unregister

__all__ = ["Proposer", "register", "unregister"]
