"""Making schedules: routing, ordering, contiguity, the folded job shop, and the portfolio of them."""
