"""The entry for `accelerate launch`, nothing but the call; `--help` and evaluation/README.md say the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# MKL's last digits depend on where in memory an array begins, and so on what the process did before; in this mode they
# do not. Those of numpy's products depend on the number of threads, which launchers set differently. Both are read when
# the libraries load, hence set before anything else is imported.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if __package__ in (None, ""):  # launched as a file: the project's folder, not evaluation/, is where imports start
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from evaluation.wmt.run import main

if __name__ == "__main__":
    sys.exit(main())
