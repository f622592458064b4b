"""Pure transitions of a workload: state in, state and history out."""
