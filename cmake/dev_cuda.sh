# The part of `dev` that finds a CUDA toolkit or fetches one: sourced by it, not run. Uses its
# functions say, die, has_header and install_packages and its variables root, deps, build, preset,
# with_cuda_wheels and cmake_args; choose_toolkit() sets `toolkit`.
# shellcheck shell=bash disable=SC2154

# pip_fetch REQUIREMENTS TARGET [pip arguments]: installs pinned wheels into the folder TARGET.
pip_fetch() {
  local requirements=$1 target=$2
  shift 2
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3 python3-pip
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet \
    --no-deps --no-compile --require-hashes --only-binary=:all: --target "$target" "$@" \
    -r "$requirements" >&2
}

# True if the folder's wheels were unpacked from this very list.
is_current() { cmp -s "$1" "$2/requirements.txt"; }

# Puts unpacked wheels in place whole or not at all.
publish() {
  cp "$2" "$1/requirements.txt"
  rm -rf "$3"
  mv "$1" "$3"
}

ensure_cudnn_frontend() {
  local list=$root/cmake/requirements-cudnn-frontend.txt temporary
  is_current "$list" "$deps/cudnn-frontend" && return
  say "fetching the headers of cudnn-frontend"
  temporary=$(mktemp -d -p "$deps")
  # Its headers are the same in every wheel; naming one keeps the pinned hash valid for any Python.
  if ! pip_fetch "$list" "$temporary/wheel" --platform manylinux_2_28_x86_64 \
    --implementation cp --python-version 3.11 --abi cp311; then
    rm -rf "$temporary"
    say "cudnn-frontend could not be fetched; without its headers there is no CUDA backend"
    return
  fi
  mkdir "$temporary/kept"
  mv "$temporary/wheel/include" "$temporary/kept/"
  publish "$temporary/kept" "$list" "$deps/cudnn-frontend"
  rm -rf "$temporary"
}

fetch_cuda_wheels() {
  local list=$root/cmake/requirements-cuda.txt temporary library
  is_current "$list" "$deps/cuda" && return
  say "fetching the CUDA toolkit and cuDNN into .deps/cuda (0.9 GiB)"
  temporary=$(mktemp -d -p "$deps")
  # Kept once, here, and not in pip's cache as well.
  if ! pip_fetch "$list" "$temporary/wheels" --no-cache-dir; then
    rm -rf "$temporary"
    die "the CUDA wheels could not be fetched"
  fi
  # The wheels come without the folder and link names that a toolkit has.
  local toolkit=$temporary/wheels/nvidia/cu13
  mv "$temporary"/wheels/nvidia/cudnn/include/* "$toolkit/include/"
  mv "$temporary"/wheels/nvidia/cudnn/lib/* "$toolkit/lib/"
  rm -f "$toolkit"/lib/*.alt.so.*
  for library in "$toolkit"/lib/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  ln -s lib "$toolkit/lib64"
  publish "$toolkit" "$list" "$deps/cuda"
  rm -rf "$temporary"
}

find_system_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
    "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [[ -n $candidate && -x $candidate ]]; then
      realpath "$candidate"
      return
    fi
  done
}

# True for an nvcc of CUDA 13 or later whose toolkit, or the system, has cuDNN.
is_usable_toolkit() {
  [[ -n $1 ]] || return 1
  local include version
  include=$(dirname "$(dirname "$1")")/include
  version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$include/cuda.h" 2>/dev/null ||
    true)
  ((${version:-0} >= 13000)) || return 1
  [[ -e $include/cudnn.h || -e ${CUDNN_HOME:-/nowhere}/include/cudnn.h ]] || has_header cudnn.h
}

has_nvidia_driver() {
  [[ -e /dev/nvidia0 || -e /dev/nvidiactl ]] || command -v nvidia-smi >/dev/null
}

# True if the user wants the wheels. Asks on a terminal, and only while the build folder is new.
accepts_cuda_wheels() {
  local answer
  [[ $with_cuda_wheels == 1 || -d $deps/cuda ]] && return 0
  has_nvidia_driver && [[ ! -e $build/build.ninja ]] || return 1
  say "this machine has an NVIDIA driver, but no CUDA 13 toolkit with cuDNN"
  if [[ -t 0 && -t 2 ]]; then
    read -r -p "dev: fetch one from PyPI into .deps/cuda (0.9 GiB, 1.5 GiB on disk)? [Y/n] " answer
    [[ ${answer:-y} == [yY]* ]] && return 0
  fi
  say "building for the CPU; ./dev build --with-cuda-wheels fetches a toolkit"
  return 1
}

# Sets toolkit to the nvcc to build with, or to nothing.
choose_toolkit() {
  toolkit=
  [[ $preset == cpu || $preset == asan ]] && return
  local argument wanted=AUTO
  for argument in ${cmake_args[@]+"${cmake_args[@]}"}; do
    [[ $argument =~ ^-DHEADROOM_CUDA(:[A-Z]+)?=(.*)$ ]] && wanted=${BASH_REMATCH[2]}
  done
  [[ $wanted == OFF ]] && return
  if [[ $(uname -m) != x86_64 ]]; then
    say "the CUDA backend is built on x86-64 alone"
    return
  fi
  mkdir -p "$deps"
  local nvcc
  nvcc=$(find_system_nvcc)
  if is_usable_toolkit "$nvcc"; then
    toolkit=$nvcc
  elif accepts_cuda_wheels; then
    fetch_cuda_wheels
    toolkit=$deps/cuda/bin/nvcc
  fi
  [[ -z $toolkit ]] || ensure_cudnn_frontend
}
