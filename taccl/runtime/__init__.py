"""Programs executed: by MPI ranks, with real messages on real buffers, judged and timed beside MPI's own."""
