"""The page of `acpmbr ui` as a Hugging Face Space, with the embedded models only and tighter limits."""

from hf_acpmbr.ui import Limits
from hf_acpmbr.ui.page import launch

if __name__ == "__main__":
    launch(limits=Limits(source_characters=300, candidates=96), host="0.0.0.0", port=7860)
