"""Making schedules: routing, ordering, contiguity, the job shop, and the portfolio of them."""

from taccl.synthesis.proposing import Proposer, register, unregister

__all__ = ["Proposer", "register", "unregister"]
