#!/bin/bash
# sbatch --array=1-5 finetune.sh RUNS --config NAME --preset PRESET --data RECORDS [--set …]: a run for each
# seed, RUNS/seed-1 to RUNS/seed-5. With RATES="2e-05 3e-05" SIZES="16 32" before sbatch --array=0-3, those of
# `finetune --grid`, which then finds them finished in RUNS and compares them.
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
number=${SLURM_ARRAY_TASK_ID:?is set by sbatch --array=FIRST-LAST}
if [ -n "$RATES" ]; then
  read -ra rates <<< "$RATES"
  read -ra sizes <<< "$SIZES"
  rate=${rates[number / ${#sizes[@]}]} size=${sizes[number % ${#sizes[@]}]}
  run=$1/learning-rate-${rate:?--array goes beyond RATES times SIZES}-batch-$size
  settings=(optimizer.learning_rate="$rate" training.batch_size="$size" training.keep_checkpoints=false)
else
  run=$1/seed-$number settings=(training.seed="$number")
fi
shift
# SIGTERM comes 180 s before the time is up: the run saves the step that it is at, and ends with 0.
srun spanbert-tf finetune --output "$run" "$@" "${settings[@]/#/--set=}"
status=$?
# 2 is a mistake in what was asked for: another try would find it again.
if [ "$status" -ne 2 ] && [ ! -d "$run/preset" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 50 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
