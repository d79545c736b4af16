#!/bin/bash
# The records of an NVIDIA GPU: decode and prefill of the engine beside its rivals, for every shape in fixtures/configs.
#
#   SECONDS_LEFT=1500 docs/benchmarks/nvidia.sh OUT
#
# Needs `lattice` and `python` of one environment on the PATH. Each record is a process with 1, 8 and 32 rows, moved to OUT
# when it is whole: a run that is cut loses one record, and the next run goes on from there. What matters most comes first.
# Beside bfloat16 stands mlx-lm, and transformers where torch can be imported (and the weights fit three times); beside 4
# and 8 bits nobody, because mlx-lm's kernels of 4 bits compiled for minutes there. QUANTIZED_RIVAL=1 asks for it all the same.
# The commands were run one by one on an H200; this script as a whole was tried with stubs in place of what needs a GPU.
set -eu
out=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
end=$(($(date +%s) + ${SECONDS_LEFT:-1500}))
mkdir -p "$out"
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
failed=0
rivals=mlx-lm
python -c 'import torch, transformers' 2> /dev/null && rivals=mlx-lm,transformers

limited() { # NAME COMMAND...: within the time that is left; its log stays
  local name=$1 left
  shift
  left=$((end - $(date +%s)))
  if [ "$left" -lt 20 ]; then
    echo "$name: no time left" >&2
    return 1
  fi
  timeout "$left" "$@" > "$out/$name.log" 2>&1 || {
    echo "$name: status $?, see $name.log" >&2
    return 1
  }
}

record() { # SHAPE WEIGHTS CONTEXT
  local name=$1-$2-$3 weights beside
  [ ! -e "$out/$name.json" ] || return 0
  case $1-$2 in
    *27b-bfloat16) weights="--dtype bfloat16" beside="--reference mlx-lm" ;;
    *-bfloat16) weights="--dtype bfloat16" beside="--reference $rivals" ;;
    *) weights="--bits ${2%bit} --group 64" beside=${QUANTIZED_RIVAL:+--reference mlx-lm} ;;
  esac
  if limited "$name" lattice bench speed --random-weights "$root/fixtures/configs/$1.json" $weights --rows 1,8,32 \
    --prompt-tokens "$3" --tokens 128 --trials 3 $beside --explain --save "$part/$name.json"; then
    mv "$part/$name.json" "$out/"
  else
    failed=1
  fi
}

shapes=${SHAPES:-$(cd "$root/fixtures/configs" && ls qwen3.5-*.json | sed 's/\.json$//')}
for point in "bfloat16 512" "bfloat16 8192" "4bit 512" "8bit 512" "bfloat16 2048" "4bit 8192" "8bit 8192"; do
  for shape in $shapes; do record "$shape" ${point% *} ${point#* }; done
done

# Exactness on this GPU, then races and memory errors, of a prompt's kernels and of a step's, in programs of their own: under
# the tests racecheck also finds what it takes for hazards in NVIDIA's attention.
limited exactness python -m pytest -q -m "slow or tiny" "$root/tests/kernels/test_cuda.py" \
  "$root/tests/kernels/test_cuda_widths.py" || failed=1
if command -v compute-sanitizer > /dev/null && command -v nvcc > /dev/null; then
  nvcc -std=c++17 -arch=native -lineinfo -I "$root/lattice_cli/kernels/cuda" "$root/tests/kernels/cuda/harness.cu" -o "$part/harness"
  for tool in memcheck racecheck synccheck; do
    limited "prompt-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$part/harness" || failed=1
  done
  for plan in "16 1" "16 4" "8 4" "4 4"; do
    (cd "$root" && python -m tests.kernels.cuda.plan $plan) > "$part/plan.h"
    name=step-${plan/ /-}
    nvcc -std=c++17 -arch=native -lineinfo -I "$root/lattice_cli/kernels/cuda" -I "$part" \
      "$root/tests/kernels/cuda/harness_step.cu" -o "$part/$name"
    for tool in memcheck racecheck synccheck; do
      limited "$name-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$part/$name" || failed=1
    done
  done
else
  echo "compute-sanitizer and nvcc: not on the PATH" >&2
fi
exit "$failed"
