"""GPU sharing: reservation pods hold the shared devices."""
