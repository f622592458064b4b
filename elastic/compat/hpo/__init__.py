"""Search of hyper-parameters that outlives pauses, under the original names."""
