# SPDX-License-Identifier: Apache-2.0
"""Summary writers of Weights & Biases and MLflow.

Their packages are optional dependencies, imported only here.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import uuid
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pax.files import side_files
from pax.summaries import media
from praxis import base_layer

SummaryType = base_layer.SummaryType

TRAIN = 'train'


class WandbWriter:
  """Logs to a Weights & Biases project; the job directory names the run."""

  def __init__(self, project: str, job_log_dir: str, mode: str = TRAIN):
    self._wandb = _load('wandb', '--wandb_project')
    file = _id_file(job_log_dir, 'wandb', mode)
    run_id = read_id(file) or uuid.uuid4().hex
    self._run = self._wandb.init(
      project=project,
      name=_run_name(job_log_dir, mode),
      id=run_id,
      dir=job_log_dir,
      resume='allow',
    )
    write_id(file, run_id)
    # Evaluations may be logged after later training steps, which the default
    # step counter of W&B rejects.
    self._run.define_metric('*', step_metric='step')
    # Holds videos and audio until W&B has copied them.
    self._folder = tempfile.TemporaryDirectory()
    self._count = 0

  def write(
    self, step: int, values: Mapping[str, Any], split: str = TRAIN
  ) -> None:
    logged = {'step': step}
    for tag, value in values.items():
      name = _name(tag, split)
      if getattr(value, 'kind', None) is SummaryType.AUDIO:
        # Lists of wandb.Audio need a further package.
        logged |= {
          f'{name}{at}': self._audio(value, x) for at, x in value.items()
        }
      else:
        logged[name] = self._value(value)
    self._run.log(logged)

  def text(self, step: int, tag: str, text: str, split: str = TRAIN) -> None:
    self.write(step, {tag: media.Media(SummaryType.TEXT, text)}, split)

  def flush(self) -> None:
    pass  # W&B sends in the background.

  def close(self) -> None:
    self._run.finish()
    self._folder.cleanup()

  def _value(self, value: Any) -> Any:
    if not isinstance(value, media.Media):
      return float(value)
    items = [item for _, item in value.items()]
    if value.kind is SummaryType.IMAGE:
      return [self._wandb.Image(image) for image in items]
    if value.kind is SummaryType.VIDEO:
      videos = [media.animated_png(frames) for frames in items]
      return [self._wandb.Image(self._file(v, 'png')) for v in videos]
    if value.kind is SummaryType.HISTOGRAM:
      return self._wandb.Histogram(items[0])
    return '\n'.join(items)

  def _audio(self, value: media.Media, samples: Any) -> Any:
    sound = media.wav(samples, value.sample_rate)
    return self._wandb.Audio(self._file(sound, 'wav'))

  def _file(self, content: bytes, suffix: str) -> str:
    """Returns the path of a file with this content, for W&B to copy."""
    self._count += 1
    path = os.path.join(self._folder.name, f'{self._count}.{suffix}')
    with open(path, 'wb') as f:
      f.write(content)
    return path


class MlflowWriter:
  """Logs to an MLflow experiment at MLFLOW_TRACKING_URI.

  Texts, images and videos become artifacts; audio and histograms are dropped.
  """

  def __init__(self, experiment: str, job_log_dir: str, mode: str = TRAIN):
    self._mlflow = _load('mlflow', '--mlflow_experiment')
    self._mlflow.set_experiment(experiment)
    file = _id_file(job_log_dir, 'mlflow', mode)
    run_id = read_id(file)
    name = None if run_id else _run_name(job_log_dir, mode)
    run = self._mlflow.start_run(run_id=run_id, run_name=name)
    write_id(file, run.info.run_id)

  def write(
    self, step: int, values: Mapping[str, Any], split: str = TRAIN
  ) -> None:
    numbers = {}
    for tag, value in values.items():
      if isinstance(value, media.Media):
        self._artifacts(step, _name(tag, split), value)
      else:
        numbers[_name(tag, split)] = float(value)
    self._mlflow.log_metrics(numbers, step=step)

  def text(self, step: int, tag: str, text: str, split: str = TRAIN) -> None:
    self._mlflow.log_text(text, f'{_name(tag, split)}.txt')

  def flush(self) -> None:
    pass

  def close(self) -> None:
    self._mlflow.end_run()

  def _artifacts(self, step: int, name: str, value: media.Media) -> None:
    for suffix, item in value.items():
      if value.kind is SummaryType.IMAGE:
        self._mlflow.log_image(item, f'{name}{suffix}/{step}.png')
      elif value.kind is SummaryType.VIDEO:
        self._log_video(item, f'{name}{suffix}', step)
      elif value.kind is SummaryType.TEXT:
        self._mlflow.log_text(item, f'{name}{suffix}/{step}.txt')

  def _log_video(self, frames: Any, folder: str, step: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
      path = os.path.join(directory, f'{step}.png')
      with open(path, 'wb') as f:
        f.write(media.animated_png(frames))
      self._mlflow.log_artifact(path, folder)


def check(flag: str, module: str) -> None:
  """Raises ValueError unless the package that a flag needs is installed."""
  _load(module, flag)


def _load(module: str, flag: str) -> ModuleType:
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as e:
    raise ValueError(
      f'{flag} needs the package {module!r}, which is not installed: pip'
      f' install {module}'
    ) from e


def _name(tag: str, split: str) -> str:
  return f'{split}/{tag}'


def _run_name(job_log_dir: str, mode: str) -> str:
  name = os.path.basename(os.path.abspath(job_log_dir))
  return name if mode == TRAIN else f'{name} {mode}'


def _id_file(job_log_dir: str, service: str, mode: str) -> str:
  """Returns the file of the run id, with which a resumed job continues."""
  return os.path.join(job_log_dir, f'{service}_run_id_{mode}.txt')


def read_id(path: str) -> str | None:
  """Returns the run id in a file; None if it is missing or damaged."""
  return side_files.read(path, _parse_id)


def _parse_id(text: str) -> str:
  run_id = text.strip()
  if not (run_id and run_id.isprintable()):
    raise ValueError('it is not the id of a run')
  return run_id


def write_id(path: str, run_id: str) -> None:
  """Writes a run id, if the file can be written."""
  side_files.write_text(path, run_id)
