#!/bin/bash
# The records of an NVIDIA GPU: decode and prefill of the engine beside mlx-lm, for every shape in fixtures/configs.
#
#   SECONDS_LEFT=1500 docs/benchmarks/nvidia.sh OUT
#
# Needs `lattice` and `python` of one environment on the PATH. Each point is a process with a record of its own in OUT,
# moved there when it is whole: a run that is cut loses one point, and the next run goes on from there. What matters most
# comes first. 256 tokens, so that 32 rows decode at once for most of a trial. mlx-lm stands beside bfloat16 only, because
# its kernels of 4 bits compiled for minutes there; QUANTIZED_RIVAL=1 asks for it there too. Not yet run on a GPU.
set -eu
out=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
end=$(($(date +%s) + ${SECONDS_LEFT:-1500}))
mkdir -p "$out"
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
failed=0

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

point() { # SHAPE WEIGHTS ROWS CONTEXT
  local name=$1-$2-$3x$4 weights rival
  [ ! -e "$out/$name.json" ] || return 0
  rival="--reference mlx-lm"
  case $2 in
    bfloat16) weights="--dtype bfloat16" ;;
    *) weights="--bits ${2%bit} --group 64"
      [ -n "${QUANTIZED_RIVAL:-}" ] || rival= ;;
  esac
  if limited "$name" lattice bench speed --random-weights "$root/fixtures/configs/$1.json" $weights --rows "$3" \
    --prompt-tokens "$4" --tokens 256 --trials 3 $rival --explain --save "$part/$name.json"; then
    mv "$part/$name.json" "$out/"
  else
    failed=1
  fi
}

shapes=${SHAPES:-$(cd "$root/fixtures/configs" && ls qwen3.5-*.json | sed 's/\.json$//')}
for context in 512 8192 2048; do
  for kind in bfloat16 4bit 8bit; do
    for shape in $shapes; do
      for rows in 1 8 32; do point "$shape" "$kind" "$rows" "$context"; done
    done
  done
done
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    limited "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      python -m pytest "$root/tests/kernels/test_cuda.py" -q -x || failed=1
  done
else
  echo "compute-sanitizer: not on the PATH" >&2
fi
exit "$failed"
