"""Magics and live views for notebooks; `%load_ext runai.widgets`."""
