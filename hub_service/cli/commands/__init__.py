"""Commands of `runai`, one module for each family."""
