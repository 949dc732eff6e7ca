# SPDX-License-Identifier: Apache-2.0
"""The packages of the services themselves, without their servers."""

from __future__ import annotations

import sqlite3
import sys

import numpy as np
import pytest

from pax import summaries
from pax.summaries import media
from praxis import base_layer

Kind = base_layer.SummaryType
# What their packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')


def _report(job_dir, **options):
  """Writes twice, as a job does that is started again."""
  pixels = np.random.default_rng(0).random((1, 3, 8, 8, 3))
  for step in (3, 5):
    out = summaries.create_writer(
      str(job_dir), options=summaries.WriterOptions(**options)
    )
    out.write(step, {'loss': np.float32(0.5), 'learning/lr': 1e-3})
    shown = {
      'image': media.Media(Kind.IMAGE, pixels[0]),
      'video': media.Media(Kind.VIDEO, pixels),
      'audio': media.Media(Kind.AUDIO, np.zeros((1, 400, 1))),
      'histogram': media.Media(Kind.HISTOGRAM, np.arange(9.0)),
      'nan': float('nan'),
    }
    out.write(step - 1, shown, split='eval_test_a')
    out.text(0, 'Total Num Params', '1 234')
    out.close()


def test_mlflow(tmp_path, monkeypatch):
  pytest.importorskip('mlflow')
  database = tmp_path / 'runs.db'
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{database}')
  _report(tmp_path / 'job', mlflow_experiment='mine')
  with sqlite3.connect(database) as opened:
    runs = opened.execute('select name, status from runs').fetchall()
    found = set(opened.execute('select key, step, value, is_nan from metrics'))
  assert runs == [('job', 'FINISHED')]
  assert found == {
    ('train/loss', 3, 0.5, 0),
    ('train/loss', 5, 0.5, 0),
    ('train/learning/lr', 3, 1e-3, 0),
    ('train/learning/lr', 5, 1e-3, 0),
    ('eval_test_a/nan', 2, 0.0, 1),
    ('eval_test_a/nan', 4, 0.0, 1),
  }
  names = {p.name for p in tmp_path.rglob('artifacts/**/*') if p.is_file()}
  assert names == {'2.png', '4.png', 'Total Num Params.txt'}


def test_weights_and_biases(tmp_path, monkeypatch):
  pytest.importorskip('wandb')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  _report(tmp_path / 'job', wandb_project='mine')
  first, second = sorted((tmp_path / 'job' / 'wandb').glob('offline-run-*'))
  # One run, gone on with.
  assert first.name.rpartition('-')[2] == second.name.rpartition('-')[2]
  for folder in (first, second):
    files = [p for p in folder.rglob('files/media/**/*') if p.is_file()]
    assert sorted(p.suffix for p in files) == ['.png'] * 4 + ['.wav']
    text = next(folder.glob('*.wandb')).read_bytes()
    for name in (b'train/loss', b'eval_test_a/histogram', b'train/Total Num'):
      assert name in text


@pytest.fixture(autouse=True)
def _forgets_packages():
  """Other tests put stand-ins in their place."""
  yield
  for name in ('mlflow', 'wandb'):
    sys.modules.pop(name, None)
