"""File formats: a folder for each family of formats, and in it a module to read or write each format."""
