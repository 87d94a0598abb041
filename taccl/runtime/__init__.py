"""Execution of programs by ranks of MPI or PyTorch, with checks of outputs and times of stock collectives."""
