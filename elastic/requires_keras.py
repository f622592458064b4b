"""Say what to install where Keras is missing; imported before anything that needs it.

Knows the extra's name only. Called by what is named `keras` among the packages of `runai`.
"""

try:
    import keras  # noqa: F401 - whether it can be
except ModuleNotFoundError as error:
    if error.name not in {"keras", "tensorflow"}:  # Keras imports its back end
        raise
    raise ModuleNotFoundError(
        f"{error.name} is not installed: pip install jupyter-runai[keras]", name=error.name
    ) from None

__all__: list[str] = []
