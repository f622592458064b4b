"""The program of a job that is a notebook: `python -m runai.widgets.notebook_run study.ipynb`.

It runs the cells by nbclient and writes the executed copy beside the notebook while it runs.
"""
