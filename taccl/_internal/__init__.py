"""Internal helpers, not part of the public interface: arguments, files, limits, kernels, names."""
