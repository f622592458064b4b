"""Worker processes: start them, watch them, stop them."""
