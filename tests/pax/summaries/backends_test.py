# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Service writers against fake packages: nothing is sent."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytest

from pax import summaries
from pax.summaries import media
from praxis import base_layer

SummaryType = base_layer.SummaryType

WANDB = """
logged = []
class Run:
  def define_metric(self, name, step_metric): logged.append((name, step_metric))
  def log(self, values): logged.append(values)
  def finish(self): logged.append('finished')
def init(**settings):
  logged.append(settings)
  return Run()
import pathlib
class Image:
  def __init__(self, of):
    if isinstance(of, str): self.file = pathlib.Path(of).read_bytes()
    else: self.shape = of.shape
class Audio:
  def __init__(self, path): self.file = pathlib.Path(path).read_bytes()
class Histogram:
  def __init__(self, numbers): self.count = len(numbers)
"""
MLFLOW = """
import pathlib, types
logged = []
def set_experiment(name): logged.append(name)
def start_run(run_id, run_name):
  logged.append((run_id, run_name))
  return types.SimpleNamespace(info=types.SimpleNamespace(run_id='id-7'))
def log_metrics(values, step): logged.append((step, values))
def log_text(text, path): logged.append((path, text))
def log_artifact(path, folder):
  path = pathlib.Path(path)
  logged.append((folder, path.name, path.read_bytes()))
def log_image(pixels, path): logged.append((path, pixels.shape))
def end_run(): logged.append('ended')
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """The fake packages, importable by name."""
  folder = tmp_path / 'packages'
  folder.mkdir()
  (folder / 'wandb.py').write_text(WANDB)
  (folder / 'mlflow.py').write_text(MLFLOW)
  monkeypatch.syspath_prepend(str(folder))
  yield lambda name: importlib.import_module(name).logged
  for name in ('wandb', 'mlflow'):
    sys.modules.pop(name, None)


def report(job_dir, **options):
  job_dir.mkdir(exist_ok=True)
  out = summaries.create_writer(
    str(job_dir), options=summaries.WriterOptions(**options)
  )
  out.write(3, {'loss': np.float32(0.5)})
  image = media.Media(SummaryType.IMAGE, np.zeros((1, 2, 3, 1)))
  out.write(4, {'x': image, 'n': 2}, split='eval_test_a')
  out.text(0, 'Model', 'words')
  out.close()


def test_weights_and_biases(installed, tmp_path):
  for _ in range(2):
    report(tmp_path / 'my_run', wandb_project='mine')
  logged = installed('wandb')
  started, counter, scalars, image, text, end = logged[:6]
  assert started['project'] == 'mine' and started['name'] == 'my_run'
  assert started['resume'] == 'allow' and len(started['id']) == 32
  assert logged[6] == started
  assert counter == ('*', 'step')
  assert scalars == {'step': 3, 'train/loss': 0.5}
  assert image['step'] == 4 and image['eval_test_a/n'] == 2.0
  assert image['eval_test_a/x'][0].shape == (2, 3, 1)
  assert text == {'step': 0, 'train/Model': 'words'}
  assert end == 'finished'
  # The job directory has all as ever.
  line = (tmp_path / 'my_run' / 'metrics.jsonl').read_text().splitlines()[0]
  assert json.loads(line)['loss'] == 0.5


def _film(job_dir, **options):
  job_dir.mkdir(exist_ok=True)
  out = summaries.create_writer(
    str(job_dir), options=summaries.WriterOptions(**options)
  )
  frames = np.zeros((1, 2, 4, 4, 3))
  sound = np.zeros((1, 10, 1))
  shown = {
    'film': media.Media(SummaryType.VIDEO, frames),
    'sound': media.Media(SummaryType.AUDIO, sound),
  }
  out.write(4, shown)
  out.close()
  film = media.animated_png(np.zeros((2, 4, 4, 3), np.uint8))
  return film, media.wav(sound[0], media.AUDIO_SAMPLE_RATE)


def test_videos_and_audio_are_files(installed, tmp_path):
  film, sound = _film(tmp_path / 'a', wandb_project='mine')
  (logged,) = (x for x in installed('wandb') if 'train/film' in x)
  assert logged['train/film'][0].file == film
  assert logged['train/sound/0'].file == sound
  _film(tmp_path / 'b', mlflow_experiment='mine')
  assert ('train/film/0', '4.png', film) in installed('mlflow')


def test_mlflow_goes_on_in_the_same_run(installed, tmp_path):
  for _ in range(2):
    report(tmp_path / 'my_run', mlflow_experiment='mine')
  logged = installed('mlflow')
  assert logged[:7] == [
    'mine',
    (None, 'my_run'),
    (3, {'train/loss': 0.5}),
    ('eval_test_a/x/0/4.png', (2, 3, 1)),
    (4, {'eval_test_a/n': 2.0}),
    ('train/Model.txt', 'words'),
    'ended',
  ]
  assert logged[7:9] == ['mine', ('id-7', None)]


def test_a_job_that_evaluates_has_a_run_of_its_own(installed, tmp_path):
  report(tmp_path / 'my_run', wandb_project='mine')
  report(tmp_path / 'my_run', wandb_project='mine', mode='eval')
  logged = installed('wandb')
  first, second = (x for x in logged if isinstance(x, dict) and 'project' in x)
  assert second['name'] == 'my_run eval' and first['id'] != second['id']


@pytest.mark.parametrize(
  ('option', 'flag', 'package'),
  [
    ('wandb_project', '--wandb_project', 'wandb'),
    ('mlflow_experiment', '--mlflow_experiment', 'mlflow'),
  ],
)
def test_without_the_package(option, flag, package, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, package, None)
  options = summaries.WriterOptions(**{option: 'x'})
  with pytest.raises(ValueError, match=f'{flag} needs .*pip install {package}'):
    summaries.create_writer(str(tmp_path), options=options)


def test_nothing_is_imported_unless_asked(tmp_path):
  report(tmp_path)
  assert 'wandb' not in sys.modules and 'mlflow' not in sys.modules
