#!/bin/bash
# Makes FOLDER/packages and FOLDER/source: TimesFM with the packages it needs, and
# files of the repositories of TimesFM, Sax, JAX-Toolbox and MLPerf.
#   tests/compare/existing/install.sh FOLDER
#
# PAX_UPSTREAM: the folder of ../upstream/install.sh, whose Python runs them.
# PAX_GITHUB: where the repositories are, default https://github.com (a folder
# with clones named owner/name serves machines without network).
set -euo pipefail
folder=${1:?usage: install.sh FOLDER}
origin=${PAX_GITHUB:-https://github.com}
upstream=${PAX_UPSTREAM:-$HOME/.cache/pax-upstream}
python=${PAX_UPSTREAM_PYTHON:-$upstream/venv/bin/python}
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$folder/source"
"$python" -m pip install -q --no-deps --target "$folder/packages" \
  -r "$here/requirements.txt"

clone() {  # repository
  local git="$folder/${1##*/}.git"
  [ -d "$git" ] || git clone -q --bare --filter=blob:none "$origin/$1" "$git"
}
show() {  # repository commit path target
  mkdir -p "$(dirname "$folder/source/$4")"
  git --git-dir="$folder/${1##*/}.git" show "$2:$3" > "$folder/source/$4"
}

clone google/saxml
mkdir -p "$folder/source/sax"
git --git-dir="$folder/saxml.git" archive \
  eb93f3e59cfb3c1dd0f74f49775ba0d19a67c012 saxml |
  tar x -C "$folder/source/sax"
(
  cd "$folder/source/sax"
  PYTHONPATH="$(cd "$folder/packages" && pwd)" "$python" -m grpc_tools.protoc \
    -I. --python_out=. --grpc_python_out=. saxml/protobuf/*.proto
  # The paths under which its tests find their data.
  mkdir -p google3/third_party/py
  ln -sfn ../../../saxml google3/third_party/py/saxml
  ln -sfn . __main__
)

clone NVIDIA/JAX-Toolbox
show NVIDIA/JAX-Toolbox eac7ae41c893aeef7df8bacb236223cb394a4b29 \
  .github/container/test-pax.sh jax_toolbox/test-pax.sh

clone mlcommons/training_results_v3.1
show mlcommons/training_results_v3.1 d06288b2bd675a9d88e0e6181f5bb5626b71ec19 \
  Google/benchmarks/gpt3/implementations/PAX/src/c4_mllog.py \
  mlperf/pax/tasks/lm/params/c4_mllog.py

clone google-research/timesfm
mkdir -p "$folder/source/timesfm"
git --git-dir="$folder/timesfm.git" archive \
  3dae50b20d7a724981e8ea36cda75578f80dd2dc v1/src/adapter |
  tar x -C "$folder/source/timesfm" --strip-components=2
echo "programs are ready"
