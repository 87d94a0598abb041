"""The verifier: judges schedules against their problem, by arithmetic that no producer uses."""
