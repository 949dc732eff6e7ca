# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""A compiled step goes through a file, and only into a job that is the same."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from pax import partitioning
from pax.files import trusted_files
from pax.partitioning import saved_step
from tests.pax import tiny


def partitioner(mesh=(1, 2, 2), **fields):
  size = int(np.prod(mesh))
  return partitioning.partition_task(
    tiny.task(mesh=list(mesh), **fields),
    tiny.spec(tiny.batch()),
    devices=jax.devices()[:size],
  )


def losses(made):
  key = jax.random.key(3)
  state, step = made.initialize(key), made.train_step()
  found = []
  for seed in range(3):
    batch = made.put_batch(tiny.batch(seed=seed))
    state, out = step(state, batch, key)
    found.append(float(out.loss))
  return found


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A file, and the losses of the job that wrote it."""
  made = partitioner()
  path = tmp_path_factory.mktemp('saved') / 'folder' / 'step'
  saved_step.save(made.train_step(), path)
  return path, losses(made)


def test_a_loaded_step_computes_the_same_and_is_not_compiled(
  saved, monkeypatch
):
  path, expected = saved
  made = partitioner()
  saved_step.load(made.train_step(), path)

  def compile_again(*unused):
    raise AssertionError('compiled again')

  with monkeypatch.context() as patched:
    patched.setattr(partitioning.PartitionedStep, 'lower', compile_again)
    made.train_step().compile()
  assert losses(made) == expected


@pytest.mark.parametrize(
  ('job', 'says'),
  [
    ({'mesh': (1, 4, 1)}, "another mesh .*'mdl': 2.*'data': 4"),
    ({'hidden': 8}, 'another configuration'),
  ],
)
def test_another_job_is_refused(saved, job, says):
  with pytest.raises(ValueError, match=says):
    saved_step.load(partitioner(**job).train_step(), saved[0])


def test_another_jax_is_refused(saved, tmp_path):
  head, _, payload = saved[0].read_bytes().partition(b'\n')
  identity = json.loads(head)
  assert identity['jax'] == jax.__version__
  other = tmp_path / 'step'
  other.write_bytes(
    json.dumps(identity | {'jax': '0.1.2'}).encode() + b'\n' + payload
  )
  with pytest.raises(ValueError, match=r'another JAX version 0\.1\.2'):
    saved_step.load(partitioner().train_step(), other)


def test_what_is_no_step(saved, tmp_path):
  step = partitioner().train_step()
  with pytest.raises(ValueError, match='--aot_save=FILE writes one'):
    saved_step.load(step, tmp_path / 'missing')
  damaged = tmp_path / 'damaged'
  content = bytearray(saved[0].read_bytes())
  damaged.write_bytes(content[:-1000])
  with pytest.raises(ValueError, match='is damaged: its checksum differs'):
    saved_step.load(step, damaged)
  content[-5000] ^= 1
  damaged.write_bytes(content)
  with pytest.raises(ValueError, match='is damaged: its checksum differs'):
    saved_step.load(step, damaged)
  damaged.write_bytes(b'[1]\n')
  with pytest.raises(ValueError, match='no compiled step can be read'):
    saved_step.load(step, damaged)


def test_a_step_that_others_can_write_is_not_unpickled(saved, tmp_path):
  step = partitioner().train_step()
  shared = tmp_path / 'shared'
  shared.write_bytes(saved[0].read_bytes())
  shared.chmod(0o666)
  with pytest.raises(
    trusted_files.UntrustedFileError, match='--aot_load:.*all'
  ):
    saved_step.load(step, shared)
  saved_step.load(step, shared, trust_foreign_files=True)


def test_where_nothing_can_be_written(saved):
  made = partitioner()
  made.train_step().set_compiled(made.train_step().compiled)
  with pytest.raises(ValueError, match='cannot save'):
    saved_step.save(made.train_step(), saved[0] / 'below' / 'a_file')
