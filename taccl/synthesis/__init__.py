"""Making schedules: routing, ordering, contiguity, the job shop, and the portfolio of them."""
