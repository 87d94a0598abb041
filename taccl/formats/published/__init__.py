"""Algorithm files of the published TACCL tool: reader and writer."""
