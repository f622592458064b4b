"""Wait reasons, queue positions, forecasts and counterfactuals of a plan."""
