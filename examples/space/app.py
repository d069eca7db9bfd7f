"""The page of `acpmbr ui` as a Hugging Face Space, with the embedded models only and tighter limits."""

from hf_acpmbr.ui.page import launch
from hf_acpmbr.ui.settings import Limits

if __name__ == "__main__":
    launch(limits=Limits(source_characters=300, candidates=96, file_lines=50), host="0.0.0.0", port=7860)
