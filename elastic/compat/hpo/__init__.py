"""Hyper-parameter search that survives pauses, under the original names."""

from runai.hpo.experiments import Status, Strategy, init, pick, report

__all__ = ["Status", "Strategy", "init", "pick", "report"]
