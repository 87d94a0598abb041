"""Models of the published pipeline (routing, ordering, contiguity) and a job shop, on the quotient."""
