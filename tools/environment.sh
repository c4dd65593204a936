# Sourced by the scripts here, never run: the places they share and how they speak.
#
#   GRAVURE_CACHE   where everything that is downloaded or built is kept (~/.cache/gravure)
#   GRAVURE_TORCH_RELEASE  the release of PyTorch, as --torch says it (2.15)
#   GRAVURE_VENV    the virtual environment that tools/setup makes ($GRAVURE_CACHE/venv-2.15)
#   GRAVURE_PYTHON  an interpreter whose torch is used as it is, in place of that environment
#
# A script that takes --torch RELEASE calls take_torch "$@" first; what is left is in "${rest[@]}".

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${GRAVURE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gravure}
logs=$cache/logs
mkdir -p "$logs"

say() { printf '%s\n' "gravure: $*"; }

die() {
  printf '%s\n' "gravure: $*" >&2
  exit 1
}

# The release that is meant where nobody names one: Bazel's links to its outputs are plain `bazel-bin`.
# It also stands in python/gravure_native.py, which looks there, and in third_party/torch.bzl.
default_release=2.15

# Oldest first: those that requirements/ has a file for.
known_releases() {
  local file
  for file in "$root"/requirements/torch-*.txt; do
    file=${file##*/torch-}
    echo "${file%.txt}"
  done | sort --version-sort
}

# choose_release RELEASE: where the environment and Bazel's outputs for that torch lie.
choose_release() {
  release=$1
  [[ -f $root/requirements/torch-$release.txt ]] ||
    die "there is no torch '$release' for gravure; it knows $(known_releases | paste -sd ' ')"
  export GRAVURE_TORCH_RELEASE=$release
  # One server of Bazel's and one tree of outputs a release, so that none has the others built anew.
  if [[ $release == "$default_release" ]]; then
    bin=$root/bazel-bin
    bazel_startup=()
    bazel_links=()
  else
    bin=$root/bazel-$release/bin
    bazel_startup=(--output_user_root="$cache/outputs-$release" --max_idle_secs=900)
    bazel_links=(--symlink_prefix="bazel-$release/")
  fi
  venv=${GRAVURE_VENV:-$cache/venv-$release}
  python=${GRAVURE_PYTHON:-$venv/bin/python}
}

# take_torch ARGUMENTS...: chooses the release that --torch names; the other arguments are in `rest`.
take_torch() {
  rest=()
  while (($# > 0)); do
    case $1 in
      --torch)
        (($# > 1)) || die "--torch needs a release: $(known_releases | paste -sd ' ')"
        choose_release "$2"
        shift
        ;;
      --torch=*) choose_release "${1#--torch=}" ;;
      *) rest+=("$1") ;;
    esac
    shift
  done
}

choose_release "${GRAVURE_TORCH_RELEASE:-$default_release}"

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
  local command=$1 progress=() all=$root/bazel-${root##*/}
  shift
  # The default release's link to all that it reads is a tree of packages to another server.
  [[ $release == "$default_release" || ! -L $all ]] || rm "$all"
  [[ -t 2 ]] || progress=(--show_progress_rate_limit=20)
  (cd "$root" && bazel "${bazel_startup[@]}" ${GRAVURE_BAZEL_STARTUP:-} "$command" \
    --disk_cache="${GRAVURE_DISK_CACHE:-$cache/bazel}" \
    --repo_env=PYTHON_BIN_PATH="$python" \
    --repo_env=GRAVURE_TORCH="$(torch_stamp)" \
    --jobs="$(bazel_jobs)" \
    --ui_event_filters=-info \
    "${bazel_links[@]}" \
    "${progress[@]}" \
    ${GRAVURE_BAZEL_FLAGS:-} \
    "$@")
}
