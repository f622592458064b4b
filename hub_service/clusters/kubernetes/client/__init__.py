"""Client of the API server: requests, leader election, access rights."""
