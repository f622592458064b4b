"""`python -m runai.embedded` is `runai up`."""

import sys

from runai.embedded.up import main

if __name__ == "__main__":
    sys.exit(main())
