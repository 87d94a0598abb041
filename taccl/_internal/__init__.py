"""Helpers of the package, not part of its interface: arguments, files, limits, kernels, names."""
