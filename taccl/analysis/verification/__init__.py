"""The verifier: schedules judged against their problem, by arithmetic that no producer uses."""
