"""Programs as modules for PyTorch: rounds of messages, the places of their data, and the code around them."""
