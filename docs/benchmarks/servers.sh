#!/bin/bash
# Three servers with the same 4-bit weights on one machine, by turns: single stream and 1 to 16 clients.
#
#   LLAMA_SERVER=llama/bin/llama-server docs/benchmarks/servers.sh OUT
#
# Needs smollm2-135m (`lattice pull smollm2-135m`), `lattice` and `python` of one environment on the PATH, matplotlib
# for the figures, and a llama-server (docs/benchmarks.md says how it is built). Takes half an hour on two cores.
# OUT has a record for each visit of each server, and the report. PARTS=short leaves the long prompts out (ten minutes).
set -eu
out=$1
port=${PORT:-18435}
gguf=$(ls ~/.lattice/models/smollm2-135m/*.gguf)
mkdir -p "$out"
mlx=$(mktemp -d)/smollm2-4bit
python "$(dirname "$0")/../../fixtures/make_mlx_folder.py" "$gguf" "$mlx"

serve() {
  case $1 in
    lattice) exec lattice serve --model smollm2-135m --port "$port" --max-rows 16 ;;
    llama-server) exec "$LLAMA_SERVER" -m "$gguf" --port "$port" -t 2 -np 16 -c 16384 -fa on --poll 100 ;;
    mlx_lm.server) exec python -m mlx_lm server --model "$mlx" --port "$port" ;;
  esac
}

visit() { # SERVER NAME OPTIONS...: a process of its own, measured, ended
  server=$1 name=$2
  shift 2
  serve "$server" > "$out/$name.log" 2>&1 &
  pid=$!
  until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do sleep 0.2; done
  model=$([ "$server" = mlx_lm.server ] && echo default_model || curl -s "http://127.0.0.1:$port/v1/models" |
    python -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
  (cd "$out" && lattice bench load --url "http://127.0.0.1:$port" --model "$model" --clients 1,2,4,8,16 --seed 6 \
    --ignore-end --wait-quiet 20 "$@" --save "$name.json" > /dev/null) || echo "$name failed" >&2
  grep VmHWM "/proc/$pid/status" 2> /dev/null || true
  kill "$pid"
  wait "$pid" 2> /dev/null || true
}

case ${PARTS:-short long} in *short*)
  short="--prompt-tokens 64 --tokens 32 --no-strain --trials 3"
  visit lattice lattice-1 $short
  visit llama-server llama-server-1 $short
  visit mlx_lm.server mlx_lm-1 $short --trials 1 --warmups 0
  visit mlx_lm.server mlx_lm-2 $short --trials 1 --warmups 0
  visit llama-server llama-server-2 $short
  visit lattice lattice-2 $short
  (cd "$out" && lattice bench report lattice-[12].json llama-server-[12].json mlx_lm-[12].json --out short) ;;
esac
case ${PARTS:-short long} in *long*)
  long="--prompt-tokens 512 --tokens 128 --trials 3"
  visit lattice lattice-long-1 $long
  visit llama-server llama-server-long-1 $long
  visit llama-server llama-server-long-2 $long
  visit lattice lattice-long-2 $long
  (cd "$out" && lattice bench report lattice-long-*.json llama-server-long-*.json --out long) ;;
esac
