"""The model parallelism of the original library, which split layers of Keras 2.2."""
