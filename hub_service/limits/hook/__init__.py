"""Start-up hook on the PYTHONPATH of workloads, as a plain folder, not as a package.

Standard library and Python 3.8 syntax only: it runs in any interpreter that a user has.
"""
