# SPDX-License-Identifier: Apache-2.0
"""Experiments of public repositories resolve by --exp, and one trains."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.compare.existing import programs

_PROGRAMS = programs.Programs.from_environment()

pytestmark = pytest.mark.skipif(
  not _PROGRAMS.exists(), reason=f'not at {_PROGRAMS}'
)

# Values of the shell variables in JAX-Toolbox's script.
_VARIABLES = {
  'BATCH_PER_GPU': '2',
  'DP': '1',
  'DROPOUT': '0.1',
  'DTYPE': 'bfloat16',
  'FSDP': '1',
  'NGPUS': '1',
  'PP': '1',
  'TP': '1',
}
# The model of its command, small enough for a CPU. Its texts have the quotes
# with which scripts of paxml and NVIDIA CloudAI pass them.
_SMALL = {
  'CHECKPOINT_POLICY': '"save_nothing"',
  'DIMS_PER_HEAD': 32,
  'FPROP_DTYPE': '"bfloat16"',
  'HIDDEN_DIMS': 128,
  'MAX_SEQ_LEN': 32,
  'MAX_STEPS': 2,
  'MODEL_DIMS': 64,
  'NUM_HEADS': 2,
  'NUM_LAYERS': 2,
  'VOCAB_SIZE': 128,
}


def _write_ci_configs(folder: pathlib.Path, **variables: str) -> None:
  """Writes ci_configs.py as the script does."""
  script = _PROGRAMS.source('jax_toolbox/test-pax.sh').read_text()
  text = re.search(r'cat > ci_configs.py <<EOF\n(.*?)\nEOF\n', script, re.S)[1]
  values = _VARIABLES | variables
  text = re.sub(r'\$\{(\w+)\}', lambda match: values[match[1]], text)
  (folder / 'ci_configs.py').write_text(text)


def _resolve(
  name: str, tmp_path: pathlib.Path, *paths: pathlib.Path
) -> dict[str, object]:
  """Returns facts of the experiment that --exp=NAME finds."""
  code = (
    'import json, sys\n'
    'from paxml.main import get_experiment\n'
    'experiment = get_experiment(sys.argv[1])()\n'
    'task = experiment.task()\n'
    'print(json.dumps({"inputs": len(experiment.datasets()),'
    ' "mesh": task.model.ici_mesh_shape}))\n'
  )
  return _PROGRAMS.results('-c', code, name, cwd=tmp_path, paths=paths)


@pytest.mark.parametrize(
  'stages, mesh', [('1', [1, 1, 1]), ('2', [2, 1, 1, 1])]
)
def test_experiments_of_jax_toolbox(stages, mesh, tmp_path):
  _write_ci_configs(tmp_path, PP=stages, NGPUS=stages)
  got = _resolve('ci_configs.Synthetic126MCI', tmp_path, tmp_path)
  assert got['inputs'] == 2 and got['mesh'] == mesh


def test_command_of_jax_toolbox_trains(tmp_path):
  _write_ci_configs(tmp_path)
  job = tmp_path / 'job'
  _PROGRAMS.python(
    '-m',
    'paxml.main',
    '--fdl_config=ci_configs.Synthetic126MCI',
    f'--job_log_dir={job}',
    '--alsologtostderr',
    '--enable_checkpoint_saving=False',
    '--enable_summary_writer=False',
    *(f'--fdl.{name}={value}' for name, value in _SMALL.items()),
    cwd=tmp_path,
    paths=(tmp_path,),
  )
  [log] = (job / 'logs').glob('*.log')
  assert 'step 2/2  loss' in log.read_text()


@pytest.mark.parametrize(
  'name',
  [
    'C4SpmdPipelineGpt3SmallAdam8ReplicasMllog',
    'C4SpmdPipelineGpt3AdamMLPerfHPBS2k512ReplicasMllog',
  ],
)
def test_experiments_of_mlperf(name, tmp_path):
  path = f'tasks.lm.params.c4_mllog.{name}'
  got = _resolve(path, tmp_path, _PROGRAMS.source('mlperf'))
  assert got['inputs'] == 2 and len(got['mesh']) == 4
