"""Start-up module of workloads, imported by Python because this folder is on PYTHONPATH.

Limits the frameworks to the memory share (`runai_limits`), then runs the next `sitecustomize` on
the path. No error in this hook may break a program.
"""

import os
import sys


def _begin() -> None:
    try:
        from runai_limits.start import start  # noqa: PLC0415  as the interpreter finds it

        start(os.environ)
    except Exception as error:  # noqa: BLE001  a program must run without us
        if os.environ.get("RUNAI_DEBUG"):
            sys.stderr.write(f"runai: no memory limit in this process: {error!r}\n")


def _chain() -> None:
    """Run the next `sitecustomize` on the path, except another installation's hook.

    A job submitted from another installation's session has that hook on its path, too.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415  loaded by every interpreter

    path = [at for at in sys.path if not os.path.isdir(os.path.join(at, "runai_limits"))]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # noqa: PLC0415  costs time, rarely needed

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _begin()
    _chain()
