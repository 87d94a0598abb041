"""Rank placement: probe a network, renumber ranks to fit it, and tell stock libraries what to run."""
