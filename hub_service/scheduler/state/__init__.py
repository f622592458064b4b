"""State of one planning cycle: projects, free capacity, requests and ordered victims."""
