"""`python -m runai.hub_service.cli`: `runai` if the script is not on the PATH."""

from runai.hub_service.cli import main

if __name__ == "__main__":
    main()
