"""Scripts for machines with GPUs, which the tests do not run."""
