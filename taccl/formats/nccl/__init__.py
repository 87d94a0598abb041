"""Servers as NCCL and nvidia-smi describe them."""
