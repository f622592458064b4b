"""Process utilities of one machine: descriptor limits, ports, accounts, pidfds."""
