# Sourced by the scripts here, never run: the places they share and how they speak.
#
#   GRAVURE_CACHE   where everything that is downloaded or built is kept (~/.cache/gravure)
#   GRAVURE_VENV    the virtual environment that tools/setup makes ($GRAVURE_CACHE/venv)
#   GRAVURE_PYTHON  an interpreter whose torch is used as it is, in place of that environment

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${GRAVURE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gravure}
venv=${GRAVURE_VENV:-$cache/venv}
python=${GRAVURE_PYTHON:-$venv/bin/python}
logs=$cache/logs
mkdir -p "$logs"

say() { printf '%s\n' "gravure: $*"; }

die() {
  printf '%s\n' "gravure: $*" >&2
  exit 1
}

# quietly LOG WHAT COMMAND...: says WHAT, keeps the command's output in LOG, shows its end if it fails.
quietly() {
  local log=$logs/$1 what=$2
  shift 2
  say "$what"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    die "this failed: $what. The whole log: $log"
  fi
}

# One compilation of libtorch's headers takes up to 2 GiB.
bazel_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)
  ((memory >= 1)) || memory=1
  echo $((cores < memory ? cores : memory))
}

# Changes with the place of torch and of the CUDA headers, so that Bazel looks for them again.
torch_stamp() {
  "$python" "$root/third_party/find_torch.py" | sha256sum | cut -c1-16
}

# run_bazel COMMAND ARGUMENTS...: the same flags every time, so that nothing is built twice.
run_bazel() {
  local command=$1 progress=()
  shift
  [[ -t 2 ]] || progress=(--show_progress_rate_limit=20)
  (cd "$root" && bazel ${GRAVURE_BAZEL_STARTUP:-} "$command" \
    --disk_cache="${GRAVURE_DISK_CACHE:-$cache/bazel}" \
    --repo_env=PYTHON_BIN_PATH="$python" \
    --repo_env=GRAVURE_TORCH="$(torch_stamp)" \
    --jobs="$(bazel_jobs)" \
    --ui_event_filters=-info \
    "${progress[@]}" \
    ${GRAVURE_BAZEL_FLAGS:-} \
    "$@")
}
