"""Programs: what each rank executes, lowered from a schedule, and interpreted."""
