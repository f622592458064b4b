"""Report metrics and progress of a training to the platform, under the original names."""
