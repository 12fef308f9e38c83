#!/bin/bash
# sbatch pretrain.sh RUN --config NAME --data RECORDS [--set …]: a run on two nodes that goes on by itself.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
# SIGTERM comes 180 s before the time is up: the run saves the step that it is at, and ends with 0.
run=$1
shift
# A worker ends by itself when another one is lost, or makes a mistake; one that does not is ended.
srun --kill-on-bad-exit=0 --wait=900 spanbert-tf pretrain --output "$run" "$@" --set training.strategy=multi_worker
status=$?
# 2 is a mistake in what was asked for: another try would find it again.
if [ "$status" -ne 2 ] && [ ! -d "$run/preset" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 50 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
