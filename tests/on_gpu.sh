#!/usr/bin/env bash
# Everything that needs a GPU, in one go: all tests in shards, the op table under compute-sanitizer,
# and the benchmarks of single kernels.
#
#   tests/on_gpu.sh OUT [BIN]
#
# OUT gets a log per part and summary.txt; BIN is the folder of the built programs, by default
# build/release/bin. Ends with 1 if any part failed. Parts: HEADROOM_GPU_PARTS="tests memcheck
# racecheck bench"; shards: HEADROOM_GPU_SHARDS=8.
set -uo pipefail

out=${1:?the folder for logs}
bin=${2:-build/release/bin}
parts=${HEADROOM_GPU_PARTS:-tests memcheck racecheck bench}
shards=${HEADROOM_GPU_SHARDS:-8}
# CUDA's side of the op table. Its CPU side runs under AddressSanitizer elsewhere.
cuda_rows='*OpTable.GivesTheSameOnCudaAsOnTheCpu/*:*OpTable.*PredictsOnCuda/*'
mkdir -p "$out"
failed=0

say() { echo "$*" | tee -a "$out/summary.txt"; }

has_part() { [[ " $parts " == *" $1 "* ]]; }

# run_shards NAME FILTER [command...]: the test program in parallel shards.
run_shards() {
  local name=$1 filter=$2 begin=$SECONDS status=0 shard
  local -a jobs=()
  shift 2
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" "$bin/headroom_tests" \
      "--gtest_filter=$filter" >"$out/$name.$shard.log" 2>&1 &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || status=1; done
  ((status == 0)) || failed=1
  say "$name: status $status after $((SECONDS - begin)) s;" \
    "passed $(cat "$out/$name".*.log | grep -c '^\[       OK \]'), failed:" \
    "$(cat "$out/$name".*.log | grep -c '^\[  FAILED  \].*ms)')"
  grep -h '^\[  FAILED  \].*ms)' "$out/$name".*.log | tee -a "$out/summary.txt"
  grep -h '^========= \(ERROR SUMMARY\|RACECHECK SUMMARY\)' "$out/$name".*.log | sort | uniq -c |
    tee -a "$out/summary.txt"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee -a "$out/summary.txt"
has_part tests && run_shards tests '*'
has_part memcheck && run_shards memcheck "$cuda_rows" \
  compute-sanitizer --tool memcheck --error-exitcode 9
has_part racecheck && run_shards racecheck "$cuda_rows" \
  compute-sanitizer --tool racecheck --error-exitcode 9
if has_part bench; then
  "$bin/headroom_bench" --benchmark_filter=cuda --benchmark_min_time=0.002 \
    --benchmark_counters_tabular=true >"$out/bench.log" 2>&1 || failed=1
  say "bench: $(grep -c '/' "$out/bench.log") lines in bench.log"
fi
exit "$failed"
