"""Tables that compare many runs, a cache of results, plans for ranges of sizes, and diagnoses of logs."""
