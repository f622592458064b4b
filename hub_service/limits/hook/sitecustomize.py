"""Python imports this by itself at its start, because this folder is on PYTHONPATH.

Makes the frameworks keep within the share (`runai_limits`), then runs the `sitecustomize` that
would have run without us. Nothing of ours may ever break a program.
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
    """Run the next `sitecustomize` of the path, as if this one were not there.

    Nor another installation's: a job may have been submitted from a session of it, with its path.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415  loaded by every interpreter

    others = [at for at in sys.path if not os.path.isdir(os.path.join(at, "runai_limits"))]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # noqa: PLC0415  only who has one pays for it

    theirs = module_from_spec(spec)
    sys.modules["sitecustomize"] = theirs
    spec.loader.exec_module(theirs)


if __name__ == "sitecustomize":
    _begin()
    _chain()
