"""Write programs as PyTorch modules: rounds of messages, buffers for their data, and code around them."""
