"""`python -m runai.hub_service`: start the service, on this machine or over Kubernetes."""

import sys

from runai.hub_service.server.local_service import main

if __name__ == "__main__":
    sys.exit(main())
