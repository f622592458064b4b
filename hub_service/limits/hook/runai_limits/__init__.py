"""The part of a workload's own processes in keeping its memory limit."""
