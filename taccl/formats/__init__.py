"""Files: a folder for every family of formats, and a module for every format, with load, dump or both."""
