"""Algorithm files of the published TACCL tool: read, and written."""
