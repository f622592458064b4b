"""Commands of `runai`, a file for each family."""
