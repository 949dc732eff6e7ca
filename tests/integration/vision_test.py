# SPDX-License-Identifier: Apache-2.0
# bazel: deps=//pax/tasks:experiments
# bazel: size=large
"""Classifiers learn through the real program: digits, JPEG files, points."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from scipy import special

from pax import main
from pax.checkpoints import reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.inputs import digits
from tests.integration import binary, vision_experiments
from tests.pax.tasks.vision import jpegs

MNIST = 'tasks.vision.params.mnist.MnistExperiment'
RESNET = f'{vision_experiments.__name__}.TinyResNet'
STEPS = 40
# Fewer digits in a step, and longer steps.
FAST = {'BATCH_SIZE': 64, 'LEARNING_RATE': 0.1}


def _words(**settings):
  return [f'--set={name}={value}' for name, value in settings.items()]


def _evaluations(job, split):
  return [r for r in binary.records(job) if r['split'] == f'eval_test_{split}']


@pytest.fixture(scope='module')
def mnist(tmp_path_factory):
  """Forty steps and an evaluation."""
  job = tmp_path_factory.mktemp('mnist')
  words = _words(**FAST, TRAIN_STEPS=STEPS)
  words += ['--set=task.train.summary_interval_steps=1']
  # Three batches, of which the last is half full.
  words += ['--set=eval_inputs[0].batch_size=400']
  with pytest.MonkeyPatch.context() as patch:
    # Convolutions that are compiled in a hurry take eight times as long.
    patch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
    done = binary.run(MNIST, job, *words)
  assert done.returncode == 0, done.stderr
  return job


def test_digits_are_learned(mnist):
  losses = list(binary.losses(mnist).values())
  assert losses[0] == pytest.approx(math.log(10), rel=0.1)
  assert np.mean(losses[-3:]) < 0.7 * losses[0]
  train = [r for r in binary.records(mnist) if r['split'] == 'train']
  speeds = {tag for record in train for tag in record if tag.endswith('/sec')}
  assert speeds == {'Steps/sec', 'Examples/sec'}
  # The formula of the FLOPs would count each convolution once per image.
  assert all('MFU' not in record for record in train)
  [held_out] = _evaluations(mnist, 'test')
  assert held_out['Metrics/accuracy'] > 0.6


def test_evaluation_of_digits_is_that_by_hand(mnist):
  [held_out] = _evaluations(mnist, 'test')
  found = digits.mnist_5k(held_out=True)
  logits = _cnn(_params(mnist), found.images[..., None] / 255.0)
  losses = -special.log_softmax(logits, -1)[np.arange(1000), found.labels]
  accuracy = (logits.argmax(-1) == found.labels).mean()
  assert held_out['loss'] == pytest.approx(losses.mean(), rel=1e-4)
  assert held_out['Metrics/accuracy'] == pytest.approx(accuracy, abs=1e-3)
  assert held_out['Metrics/accuracy-weight'] == 1000


def _params(job):
  """Variables of the last checkpoint by name, as numpy."""
  checkpoint = CheckpointReader(reading.find_checkpoint(job)[1])
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  prefix = 'mdl_vars.params.network.'
  wanted = {
    name: jax.ShapeDtypeStruct(*about, sharding=device)
    for name, about in checkpoint.shapes.items()
    if name.startswith(prefix)
  }
  found = checkpoint.read(wanted)
  return {k.removeprefix(prefix): np.asarray(v) for k, v in found.items()}


def _cnn(params, images):
  """Logits by numpy alone, a hundred images at a time."""
  return np.concatenate(
    [_logits(params, images[i : i + 100]) for i in range(0, len(images), 100)]
  )


def _logits(params, hidden):
  for name in ('conv1', 'conv2'):
    padded = np.pad(hidden, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    hidden = np.tensordot(windows, params[f'{name}.w'], [[4, 5, 3], [0, 1, 2]])
    hidden = np.maximum(hidden + params[f'{name}.b'], 0)
    b, h, w, c = hidden.shape
    hidden = hidden.reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4))
  hidden = hidden.reshape(len(hidden), -1) @ params['dense_0.linear.w']
  hidden = np.maximum(hidden + params['dense_0.bias.b'], 0)
  return hidden @ params['dense_1.w'] + params['dense_2.b']


@pytest.mark.nightly
@pytest.mark.parametrize('mesh', ['[1,4,1]', 'None'])
def test_digits_on_many_devices(mesh, mnist, tmp_path, capfd):
  """A step of 64 digits is the same, over 4 devices and on 8 replicas."""
  words = _words(**FAST, ICI_MESH_SHAPE=mesh, TRAIN_STEPS=2, EVAL_ON_TEST=False)
  words += ['--set=task.train.summary_interval_steps=1']
  flags = [f'--exp={MNIST}', f'--job_log_dir={tmp_path}']
  code = main.main(['pax', *flags, '--compilation_cache_dir=', *words])
  assert code == 0, capfd.readouterr().err
  alone, found = binary.losses(mnist), binary.losses(tmp_path)
  # Replicas draw weights of their own key; SPMD draws the same everywhere.
  if mesh != 'None':
    assert found[0] == pytest.approx(alone[0], rel=1e-5)
    assert found[1] == pytest.approx(alone[1], rel=1e-4)
  assert found[1] < found[0]


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  folder = tmp_path_factory.mktemp('imagenet')
  jpegs.write(folder, 'train', 16)
  jpegs.write(folder, 'validation', 12)
  return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
  ('mesh', 'devices'),
  [([1, 2, 1], 2), (None, 1)],
)
def test_jpeg_files_are_learned(mesh, devices, images, tmp_path):
  words = _words(DATA_DIR=images, MESH_SHAPE=mesh)
  done = binary.run(RESNET, tmp_path, '--eval_on_test', *words, devices=devices)
  assert done.returncode == 0, done.stderr
  losses = list(binary.losses(tmp_path).values())
  assert len(losses) == 30
  assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])
  evaluations = _evaluations(tmp_path, 'validation')
  assert len(evaluations) == 15
  # Twelve images in two batches of eight.
  assert evaluations[-1]['Metrics/accuracy-weight'] == 12
  assert evaluations[-1]['Metrics/accuracy'] > 0.5


def test_images_that_are_nowhere_are_asked_for(tmp_path):
  done = binary.run(RESNET, tmp_path, '--set=MESH_SHAPE=[1,1,1]')
  assert done.returncode == 1
  assert '--set DATA_DIR=/path/to/folder' in done.stderr
  assert 'DATA_DIR=synthetic' in done.stderr


def test_noise_measures_speed(tmp_path, capfd):
  words = _words(DATA_DIR='synthetic', NUM_EPOCHS=1)
  flags = [f'--exp={RESNET}', f'--job_log_dir={tmp_path}', '--eval_on_test']
  code = main.main(['pax', *flags, '--compilation_cache_dir=', *words])
  assert code == 0, capfd.readouterr().err
  assert len(_evaluations(tmp_path, 'validation')) == 1


def test_points_are_told_apart(tmp_path):
  done = binary.run('tasks.test.synthetic.SyntheticClassifier', tmp_path)
  assert done.returncode == 0, done.stderr
  losses = list(binary.losses(tmp_path).values())
  assert losses[-1] < 0.2 * losses[0]
  held_out = _evaluations(tmp_path, 'held_out')[-1]
  assert held_out['Metrics/accuracy'] > 0.95
  assert held_out['Metrics/accuracy-weight'] == 500
