"""Explanations: wait reasons, forecasts, counterfactuals."""
