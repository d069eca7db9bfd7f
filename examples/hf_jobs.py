# /// script
# requires-python = ">=3.10"
# dependencies = []
# ///
"""A file by jobs on the Hub, which need nothing of each other but a bucket that all of them see.

wheel=hf_acpmbr-VERSION-py3-none-any.whl  # `pip wheel --no-deps .` in a copy of the repository; put it into the bucket
for i in 0 1 2 3; do
    hf jobs uv run --detach --flavor l4x1 --volume hf://buckets/ME/mbr:/data --with /data/$wheel \
        examples/hf_jobs.py --shard $i/4 --input /data/en.txt --output /data/de.txt
done

Each makes its shards; the one that makes the last writes the output. A job that failed is started again with the same
line. All options of `acpmbr translate` can follow. `uv run examples/hf_jobs.py --help` lists them.
"""

from __future__ import annotations

import sys

from hf_acpmbr.cli.main import main

sys.exit(main(["translate", "--resume", *sys.argv[1:]]))
