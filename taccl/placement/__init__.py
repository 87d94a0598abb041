"""Rank placement: probe a network, reorder ranks to fit it, and write the files that stock libraries read."""
