"""State of one planning cycle: projects, capacity, requests, victims in order."""
