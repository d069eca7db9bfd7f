#!/bin/bash
# A file by a SLURM array: eight tasks that need nothing of each other but the disk. `sbatch examples/slurm_array.sh`.
# A task that fails, is preempted or runs out of time is started again alone (`sbatch --array=3 …`) or all are: finished
# shards are not made again, and the task that makes the last one writes the output.
#SBATCH --job-name=acpmbr
#SBATCH --array=0-7
#SBATCH --gpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

# The number of shares stays 8 when one task is started again alone; SLURM_ARRAY_TASK_COUNT would then say 1.
exec python -m hf_acpmbr "${1:-translate}" --shard "$SLURM_ARRAY_TASK_ID/${SHARES:-8}" --resume \
    --input "${INPUT:-en.txt}" --output "${OUTPUT:-de.txt}" "${@:2}"
