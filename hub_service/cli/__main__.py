"""`python -m runai.hub_service.cli`: the `runai` command if the script is not on the path."""

from runai.hub_service.cli import main

if __name__ == "__main__":
    main()
