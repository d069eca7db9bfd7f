"""`python -m hf_acpmbr` is the command `acpmbr`."""

import sys

from .cli import main

sys.exit(main())
