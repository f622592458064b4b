"""Processes of one machine: limits, ports, accounts, handles on them."""
