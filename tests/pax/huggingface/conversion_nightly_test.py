# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""A conversion of a billion parameters needs memory for one tensor."""

from __future__ import annotations

import filecmp
import json
import math
import shutil
import subprocess
import sys
import zlib

import jax
import ml_dtypes
import numpy as np
import pytest

from pax import checkpoints
from pax.checkpoints import reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.huggingface import conversion, families, safetensors, side_folder

_CONFIG = {
  'model_type': 'llama',
  'vocab_size': 32000,
  'hidden_size': 2048,
  'intermediate_size': 8192,
  'num_hidden_layers': 15,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
}
_LARGEST_BYTES = 2 * 32000 * 2048
_FILE = 'model.safetensors'
_PEAK = """
import resource, sys
from pax.huggingface import conversion
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
getattr(conversion, sys.argv[1])(*sys.argv[2:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def _values(name, shape):
  """Returns finite numbers of random bits."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  bits = rng.integers(0, 2**16, shape, dtype=np.uint16)
  return (bits & 0xBFFF).view(ml_dtypes.bfloat16)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A folder with a LLaMA 3 of 1.04 billion parameters in bfloat16."""
  folder = tmp_path_factory.mktemp('model')
  shapes = {
    weight.tensor: (weight.tensor_shape, np.dtype(ml_dtypes.bfloat16))
    for weight in families.read_model(_CONFIG).weights()
  }
  sizes = [math.prod(shape) for shape, _ in shapes.values()]
  assert sum(sizes) > 1e9 and 2 * max(sizes) == _LARGEST_BYTES
  (folder / 'config.json').write_text(json.dumps(_CONFIG))
  safetensors.write(
    folder / _FILE,
    safetensors.make_header(shapes),
    (_values(name, shape) for name, (shape, _) in shapes.items()),
  )
  return folder


@pytest.fixture(scope='module')
def job(model, tmp_path_factory):
  """The directory of a job, converted in this process."""
  job = tmp_path_factory.mktemp('job')
  conversion.to_pax(model, job)
  return job


def _convert_in_a_child(function, source, output):
  """Converts, and checks the growth of the memory of the child."""
  done = subprocess.run(
    [sys.executable, '-c', _PEAK, function, source, output],
    check=True,
    capture_output=True,
    text=True,
  )
  assert int(done.stdout) * 1024 < _LARGEST_BYTES + 2**30


def test_to_a_checkpoint(model, tmp_path):
  _convert_in_a_child('to_pax', model, tmp_path)


def test_from_a_checkpoint(model, job, tmp_path):
  _convert_in_a_child('to_huggingface', job, tmp_path)
  assert filecmp.cmp(model / _FILE, tmp_path / _FILE, shallow=False)


def test_from_a_checkpoint_that_training_saved(model, job, tmp_path):
  trained, output = tmp_path / 'job', tmp_path / 'output'
  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(save_interval_steps=1), str(trained)
  )
  checkpointer.save(1, _state(reading.find_checkpoint(job)[1]))
  checkpointer.close()
  shutil.copytree(job / side_folder.FOLDER, trained / side_folder.FOLDER)
  _convert_in_a_child('to_huggingface', trained, output)
  assert filecmp.cmp(model / _FILE, output / _FILE, shallow=False)


def _state(path):
  """Returns the arrays of a checkpoint as a tree."""
  checkpoint = CheckpointReader(path)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  leaves = checkpoint.read(
    {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
      for name, (shape, dtype) in checkpoint.shapes.items()
    }
  )
  state = {}
  for name, leaf in leaves.items():
    *folders, last = name.split('.')
    node = state
    for folder in folders:
      node = node.setdefault(folder, {})
    node[last] = leaf
  return state
