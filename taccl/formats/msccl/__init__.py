"""MSCCL XML: programs to files, and back."""
