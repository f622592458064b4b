"""Say what to install where PyTorch is missing; imported before anything that needs it.

Knows the extra's name only. Called by `runai.elastic.torch` and `runai.ga.torch`.
"""

try:
    import torch  # noqa: F401 - whether it can be
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "PyTorch is not installed: pip install jupyter-runai[torch]", name="torch"
    ) from None

__all__: list[str] = []
