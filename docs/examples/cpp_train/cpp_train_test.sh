#!/usr/bin/env bash
# The example trains in eager's bits; a loss that eager did not have fails it.
set -euo pipefail

# The losses in mlp/ were recorded so: kernels round alike on every processor.
export ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE DNNL_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1
here=docs/examples/cpp_train
"$here/cpp_train" "$here/mlp" | tee "$TEST_TMPDIR/out"
grep -q "10 of 12 steps replayed 1 captured partitions" "$TEST_TMPDIR/out"

cp -rL "$here/mlp" "$TEST_TMPDIR/wrong"
chmod -R u+w "$TEST_TMPDIR/wrong"
sed -i '12s/.*/0x1.0p+0/' "$TEST_TMPDIR/wrong/losses.txt"
if "$here/cpp_train" "$TEST_TMPDIR/wrong"; then
  echo "a wrong loss was not found" >&2
  exit 1
fi
