"""Common code of finders of bounds: sends that a problem needs, distances, and rates of resources."""
