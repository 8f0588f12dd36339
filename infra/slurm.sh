#!/bin/sh
# A run as a job of SLURM: sbatch infra/slurm.sh first.toml (what follows is for `npmdask run`).
# A job that reaches its time, loses its node or is requeued is queued again and goes on from its last commit, to the
# same bits. scancel ends it; the same sbatch goes on from there. Data and store lie where every node sees them.
#SBATCH --job-name=npmdask
#SBATCH --output=npmdask-%j.log
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -u

npmdask run "$@" --quiet &
run=$! again= code=0
trap 'again=yes; kill -TERM "$run" 2>/dev/null' USR1 # two minutes before the time is over; scancel sends TERM
wait "$run" || code=$?
while kill -0 "$run" 2>/dev/null; do # a signal ends `wait` before the run has ended
  code=0
  wait "$run" || code=$?
done
if [ "$code" = 130 ] && [ -n "$again" ]; then # 130: interrupted, and everything committed is kept
  scontrol requeue "$SLURM_JOB_ID"
  sleep 60 # SLURM ends this script
fi
exit "$code"
