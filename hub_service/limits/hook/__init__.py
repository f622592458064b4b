"""What workloads have on their PYTHONPATH: this folder is found there as it is, not as a package.

Standard library and Python 3.8 syntax only: it runs in whatever interpreter a user has.
"""
