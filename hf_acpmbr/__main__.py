"""`python -m hf_acpmbr` is the command `acpmbr`."""

import sys

from .cli.main import main

sys.exit(main())
