# Functions that scripts/demo and others source: they find a Python and make the checkout's .venv. ROOT is the checkout.

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# Print the path of a Python >= 3.11, preferably of plain python3.
find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  local line="apt install python3 python3-venv"
  say "${0##*/}: no Python >= 3.11 found (python3 is $(python3 -V 2>/dev/null || echo absent)). On Debian 12 or newer: $line"
  return 1
}

# Make .venv, unless it exists, works, has pip, and was made for this folder.
make_venv() {
  local venv="$ROOT/.venv" python
  if "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    if [[ ! -f $venv/.made-for || $(<"$venv/.made-for") == "$ROOT" ]]; then return; fi
    say "$venv was made for another folder: making it anew"
  elif [[ -e $venv || -L $venv ]]; then
    say "$venv is there but does not work: making it anew"
  fi
  python=$(find_python) || exit 1
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python cannot make virtual environments. As root: apt install python3-venv"
  say "making $venv with $("$python" -V)"
  rm -rf -- "$venv"
  "$python" -m venv "$venv" || { rm -rf -- "$venv"; die "could not make $venv: is the disk full, or the folder read-only?"; }
  printf '%s\n' "$ROOT" >"$venv/.made-for"
}

pip_install() { "$ROOT/.venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

# Download wheels (11 MB) of TensorRT's bindings and cuda-python to .venv/wheels: tests read names and signatures from
# them, without a GPU. If pip cannot get a wheel, its tests are skipped with that reason.
fetch_wheels() {
  local wheels="$ROOT/.venv/wheels" wanted fetching=()
  mkdir -p "$wheels"
  for wanted in tensorrt-cu12-bindings==10.16.1.11 tensorrt-cu13-bindings==11.4.0.106 cuda-bindings==13.5.0 \
    cuda-pathfinder==1.9.0; do
    compgen -G "$wheels/$(tr - _ <<<"${wanted/==/-}" | sed 's/_\([0-9.]*\)$/-\1/')-*.whl" >/dev/null && continue
    timeout 120 "$ROOT/.venv/bin/python" -m pip download --quiet --disable-pip-version-check --timeout 15 --retries 1 \
      --no-deps --only-binary :all: -d "$wheels" "$wanted" 2>/dev/null || say "no wheel of $wanted: its tests will skip" &
    fetching+=($!)
  done
  for wanted in "${fetching[@]}"; do wait "$wanted"; done
}

# Install supervision, its trackers and pandas into a separate folder, .venv/supervision, for the tests of
# Detections.to_supervision and to_df. Other tests must run without these packages and their dependencies (150 MB on
# disk), and trackers requires opencv-python, which would overwrite our cv2.
fetch_supervision() {
  local folder="$ROOT/.venv/supervision"
  rm -rf -- "$folder"
  pip_install --no-compile --no-deps --only-binary :all: --target "$folder" -c "$ROOT/constraints.txt" supervision \
    trackers contourpy cycler defusedxml fonttools kiwisolver matplotlib pandas pydeprecate pyparsing python-dateutil \
    scipy six tqdm || say "no supervision and no pandas: their tests will skip"
}

# fresh NAME: whether .venv has the packages that setup.py and constraints.txt now require. stamp NAME: record that.
state() { cat "$ROOT/setup.py" "$ROOT/constraints.txt" "$ROOT/pyproject.toml" | cksum; }
fresh() { [[ -f $ROOT/.venv/.installed-$1 && $(<"$ROOT/.venv/.installed-$1") == "$(state)" ]]; }
stamp() { state >"$ROOT/.venv/.installed-$1"; }
