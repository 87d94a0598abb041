"""A self-contained page in HTML about a schedule: figures, proof, pictures and transfers."""
