#!/usr/bin/env bash
# The example trains in eager's bits; a loss that eager did not have fails it. Two cases.
set -uo pipefail

# The losses in mlp/ were recorded so: kernels round alike on every processor.
export ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE DNNL_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1

here=docs/examples/cpp_train
passed=0 failed=0
check() {
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

trains() {
  "$here/cpp_train" "$here/mlp" | tee "$TEST_TMPDIR/out" &&
    grep -q "10 of 12 steps replayed 1 captured partitions" "$TEST_TMPDIR/out"
}

finds_a_wrong_loss() {
  cp -rL "$here/mlp" "$TEST_TMPDIR/wrong" && chmod -R u+w "$TEST_TMPDIR/wrong" &&
    sed -i '12s/.*/0x1.0p+0/' "$TEST_TMPDIR/wrong/losses.txt" || return 1
  "$here/cpp_train" "$TEST_TMPDIR/wrong" >"$TEST_TMPDIR/out"
  (($? == 1)) && grep -q "DIFFERS" "$TEST_TMPDIR/out"
}

check trains
check finds_a_wrong_loss
echo "$passed passed, $failed failed"
((failed == 0))
