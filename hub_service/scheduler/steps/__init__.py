"""Steps of a cycle: allocate, reclaim, consolidate."""
