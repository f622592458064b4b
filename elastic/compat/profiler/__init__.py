"""The profiler of the original library, which profiled sessions of TensorFlow 1."""
