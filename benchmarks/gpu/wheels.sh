#!/bin/sh
# Gathers the wheels that synth needs beside PyTorch, for a machine with a GPU that downloads nothing.
#
#     benchmarks/gpu/wheels.sh FOLDER [PYTHON_VERSION]        # here; about 35 MB
#     python3 -m pip install --no-index --no-deps --target FOLDER/site FOLDER/*.whl        # there
#     PYTHONPATH=.:FOLDER/site python3 -m benchmarks.gpu --json gpu.json
#
# The machine has Python of that version (3.12), PyTorch, NumPy, pandas, safetensors, networkx, rich,
# click, protobuf and pytest already.
set -eu
folder=$1
version=${2:-3.12}
root=$(dirname "$0")/../..
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
    --constraint "$root/constraints.txt" --dest "$folder" \
    ortools pulp pydantic annotated-types typing-inspection typing-extensions absl-py \
    immutabledict typer annotated-doc shellingham
# Pydantic names the one version of its core that it works with.
core=$(python3 - "$folder" <<'PYTHON'
import re, sys, zipfile
from pathlib import Path
(wheel,) = Path(sys.argv[1]).glob("pydantic-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    print(re.search(r"pydantic-core==([\w.]+)", archive.read(name).decode())[1])
PYTHON
)
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" \
    --implementation cp --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$folder" "pydantic-core==$core"
du -sh "$folder"
