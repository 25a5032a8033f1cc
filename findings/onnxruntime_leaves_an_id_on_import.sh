#!/usr/bin/env bash
# Importing onnxruntime writes a device id and an event database into the home folder, before any call can refuse it.
#
# One would guess: a runtime on Linux writes nothing until a session asks for it (profiling, an optimized model), and
# disable_telemetry_events() at the start of a program keeps it that way: telemetry was a feature of the Windows build.
#
# True (onnxruntime 1.31.1, the CPU wheel for Linux): "import onnxruntime" alone makes
# ~/.cache/Microsoft/DeveloperTools/.onnxruntime with a random id and an SQLite database. disable_telemetry_events()
# comes after the import, so both are there. Only ORT_DISABLE_TELEMETRY=1 in the environment before the import leaves
# the home folder empty.
#
# Why it matters: a benchmark, a container image or a test that compares its home folder before and after changes with
# the import; copies of one image share the id; and an appliance that promises to keep nothing keeps it. Set the
# variable before anything imports the library: a setting in the program's own code is too late if a plug-in was faster.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1
cat > "$folder/run.py" <<'PY'
import sys

import onnxruntime

if "disable" in sys.argv:
    onnxruntime.disable_telemetry_events()
PY
count() {  # files in a new home folder after the program ran; arguments: environment, then words for the program
    local home
    home=$(mktemp -d -p "$folder")
    env -u XDG_CACHE_HOME -u ORT_DISABLE_TELEMETRY HOME="$home" $1 "$folder/venv/bin/python" "$folder/run.py" ${2:-}
    (cd "$home" && find . -name deviceid | wc -l)
}
"$folder/venv/bin/python" -c 'import onnxruntime; print("onnxruntime", onnxruntime.__version__)'
by_import=$(count "")
disabled=$(count "" disable)
by_variable=$(count ORT_DISABLE_TELEMETRY=1)
echo "ids written: by the import $by_import, with disable_telemetry_events() $disabled, with the variable $by_variable"
[ "$by_import $disabled $by_variable" = "1 1 0" ] || { echo "onnxruntime has changed"; exit 1; }
