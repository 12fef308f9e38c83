#!/bin/bash
# sbatch prepare.sh --input 'corpus/*.gz' --vocabulary FILE --output DIR […]: `prepare pretraining` by a Dask
# worker for each task on two nodes.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --no-kill
#SBATCH --time=24:00:00
file=dask-$SLURM_JOB_ID.json  # how workers and command find the scheduler; all nodes see it
trap 'kill $(jobs -p); wait; rm -f "$file"' EXIT
dask scheduler --host "$SLURMD_NODENAME" --port 0 --no-dashboard --scheduler-file "$file" &
for _ in {1..60}; do [ -e "$file" ] || sleep 1; done
# A worker that is lost does not end the others: its work is done again.
srun --kill-on-bad-exit=0 --no-kill bash -c "dask worker --host \$SLURMD_NODENAME --nthreads 1 \
  --no-dashboard --local-directory \${TMPDIR:-/tmp} --scheduler-file '$file'" &
spanbert-tf prepare pretraining "$@" --runner dask --dask_scheduler_file "$file"
