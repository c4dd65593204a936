#!/usr/bin/env bash
# tests/cuda/run_on_gpu.sh STAGED [PROGRAM...]: on a machine with a GPU and torch 2.11, with what
# tests/cuda/stage left in the folder STAGED:
#   1. the tests of the CUDA device
#   2. gravure run --device cuda --verify on each PROGRAM (a program text or an exported folder)
#   3. the benchmark (GRAVURE_BENCH=0 leaves it out)
# Logs and bench.json go to $OUT (default: out/gpu). Exit status 0 only if all of it passed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
staged=$(cd "${1:?expected the folder that tests/cuda/stage made}" && pwd)
shift
export OUT=${OUT:-$PWD/out/gpu}
mkdir -p "$OUT"

# The binaries name the libraries of the machine that built them: here torch's and CUDA's come first.
folders=$("$python" - <<'PYTHON'
import importlib.util
from pathlib import Path

torch = Path(importlib.util.find_spec("torch").origin).parent
places = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
print(":".join(str(place) for place in places if place.is_dir()))
PYTHON
) || exit 1
export GRAVURE_LIBRARY=$staged/libgravure.so
native() { LD_LIBRARY_PATH=$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }

failed=0
# step NAME COMMAND...: keeps the output in $OUT/NAME.log and shows its end.
step() {
  local name=$1 status=0 begun=$SECONDS
  shift
  "$@" >"$OUT/$name.log" 2>&1 || status=$?
  tail -n "${LINES_SHOWN:-8}" "$OUT/$name.log"
  echo "== $name: exit status $status, $((SECONDS - begun)) s"
  ((status == 0)) || failed=$((failed + 1))
}

LINES_SHOWN=40 step tests native timeout 240 "$staged/cuda_device_test"
if grep -q "skipped: there is no CUDA device" "$OUT/tests.log"; then
  echo "== no CUDA device was found, so nothing was tested"
  failed=$((failed + 1))
fi
for program in "$@"; do
  name=$(basename "$(dirname "$program")")_$(basename "$program")
  step "run_$name" native timeout 240 "$staged/gravure" run "$program" --device cuda --steps 10 --verify
done
if [[ ${GRAVURE_BENCH:-1} == 1 ]]; then
  LINES_SHOWN=20 step bench timeout "${BENCH_LIMIT:-560}" "$python" "$here/bench_h200.py" ${BENCH_ARGS:-}
fi
echo "$failed steps failed; logs in $OUT"
((failed == 0))
