"""Programs: instructions that each rank executes, their lowering from schedules, and their interpreter."""
