"""File formats, in a folder for each family, with a module to read or write each format."""
