"""File formats: a folder for each family, and a module for each format with its reader, writer or both."""
