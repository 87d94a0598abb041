"""Topologies of servers, from files of NCCL and RCCL, and from the output of nvidia-smi."""
