from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before any Hugging Face library is imported: the default tests never reach for the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# As evaluation/run_wmt.py does: results do not depend on where arrays lie in memory.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")

settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("default")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that lies beside the project where it is developed; not on a user's machine."""
    if not SHARED.is_dir():
        pytest.skip("the real data beside the project (../shared/data) is not here")
    return SHARED
