"""Informers: local copies of objects, kept up to date by watches."""
