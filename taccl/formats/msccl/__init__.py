"""MSCCL XML: write programs as files, and read files as programs."""
