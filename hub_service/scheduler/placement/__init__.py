"""Queue order, quota checks and placement on devices."""
