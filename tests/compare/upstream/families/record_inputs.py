# SPDX-License-Identifier: Apache-2.0
"""Batches of BERT's records, and crops of JPEG files.

TensorFlow writes the files, so our interpreter needs the extra `seqio`, too.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from praxis import pax_fiddle
from tests.compare.upstream import cases

_LENGTH, _PREDICTIONS = 16, 4
_CLS, _SEP, _MASK = 101, 102, 103
# Documents of each file.
_FILES = (6, 5)
# In levels of 0 to 255: TensorFlow decodes JPEG by a faster and less exact
# transform, and does not antialias images that shrink.
_DECODING_DIFFERENCE, _SHRINKING_DIFFERENCE = 5, 7
# Number of random crops whose sizes are compared, and the quantiles.
_NUM_CROPS, _QUANTILES = 1500, (0.1, 0.3, 0.5, 0.7, 0.9)
_CROPPED = (60, 80)


def _record(random: np.random.Generator) -> bytes:
  """Returns a document of MLPerf: [CLS] text [SEP] text [SEP] and padding."""
  size = int(random.integers(6, _LENGTH + 1))
  tokens = np.zeros(_LENGTH, np.int64)
  tokens[:size] = random.integers(200, 900, size)
  tokens[[0, size // 2, size - 1]] = _CLS, _SEP, _SEP
  # The first separator is removed, and is never masked.
  text = np.setdiff1d(np.arange(1, size - 1), [size // 2])
  masked = np.sort(random.choice(text, min(3, len(text)), replace=False))
  hidden = tokens.copy()
  hidden[masked] = _MASK
  pad = np.zeros(_PREDICTIONS - len(masked), np.int64)
  values = {
    'input_ids': hidden,
    'input_mask': (np.arange(_LENGTH) < size).astype(np.int64),
    'masked_lm_positions': np.concatenate([masked, pad]),
    'masked_lm_ids': np.concatenate([tokens[masked], pad]),
  }
  features = {
    name: tf.train.Feature(int64_list=tf.train.Int64List(value=array))
    for name, array in values.items()
  }
  weights = np.arange(_PREDICTIONS) < len(masked)
  features['masked_lm_weights'] = tf.train.Feature(
    float_list=tf.train.FloatList(value=weights.astype(np.float32))
  )
  return tf.train.Example(
    features=tf.train.Features(feature=features)
  ).SerializeToString()


def _write(folder: str) -> None:
  """Writes the documents."""
  random = np.random.default_rng(0)
  for i, count in enumerate(_FILES):
    path = str(pathlib.Path(folder, f'part-{i:05d}-of-{len(_FILES):05d}'))
    with tf.io.TFRecordWriter(path) as writer:
      for _ in range(count):
        writer.write(_record(random))


def _input_generator() -> Any:
  """Returns the module of the inputs, which imports Lingvo in upstream."""
  # Lingvo's compiled operations, which only some systems load, are not used.
  sys.modules.setdefault(
    'lingvo.core.ops.gen_x_ops', mock.MagicMock(unsafe=True)
  )
  return importlib.import_module('paxml.tasks.lm.input_generator')


def _read(num_batches: int | None = None, **fields: Any) -> list[Any]:
  """Returns the batches of an input; None is all."""
  module = _input_generator()
  with tempfile.TemporaryDirectory() as folder:
    _write(folder)
    source = pax_fiddle.Config(
      module.TFRecordBertInput,
      name='bert',
      input_file=f'{folder}/part@{len(_FILES)}',
      max_sequence_length=_LENGTH,
      max_predictions_per_seq=_PREDICTIONS,
      eval_data_size=sum(_FILES),
      **fields,
    ).Instantiate()
    batches = []
    while num_batches is None or len(batches) < num_batches:
      try:
        batches.append(source.get_next())
      except (StopIteration, tf.errors.OutOfRangeError):
        break
    return batches


def _epoch(num_rows: int, **fields: Any) -> dict[str, np.ndarray]:
  """Returns the rows of an epoch of training, sorted; it is one batch."""
  (batch,) = _read(1, batch_size=num_rows, is_training=True, **fields)
  order = np.lexsort(batch['labels'].T)
  return {name: rows[order] for name, rows in batch.items()}


def _documents() -> Iterator[cases.Case]:
  for batch_size, num_hosts in itertools.product((1, 4, 11), (1, 2, 3)):
    for host in range(num_hosts):
      yield cases.FunctionCase(
        name=f'TFRecordBertInput, {batch_size} rows, {host} of {num_hosts}',
        function=functools.partial(
          _read,
          batch_size=batch_size,
          num_infeed_hosts=num_hosts,
          infeed_host_index=host,
        ),
      )
  for host, num_rows in enumerate(_FILES):
    yield cases.FunctionCase(
      name=f'TFRecordBertInput, training, {host} of 2',
      function=functools.partial(
        _epoch, num_rows, num_infeed_hosts=2, infeed_host_index=host
      ),
    )
  yield cases.FunctionCase(
    name='TFRecordBertInput, training, 0 of 1',
    function=functools.partial(_epoch, sum(_FILES)),
  )
  yield cases.FunctionCase(
    name='TFRecordBertInput, training, 0 of 3',
    function=functools.partial(_epoch, 1, num_infeed_hosts=3),
    match='num_infeed_hosts',
  )


def _synthetic(batch_size: int, seq_len: int) -> Any:
  """Returns a batch of synthetic data, of Lingvo's generator in upstream."""
  cls = _input_generator().SyntheticLmData
  if hasattr(cls, 'config'):
    source = cls.config(batch_size=batch_size, seq_len=seq_len).Instantiate()
    batch = dict(source.get_next())
    # Of the adaptor in upstream.
    del batch['eval_sample_weights']
    return batch
  params = cls.HParams().Set(batch_size=batch_size, seq_len=seq_len)
  return {k: v.numpy() for k, v in params.Instantiate()._InputBatch().items()}


def _jpeg(height: int, width: int) -> bytes:
  """Returns an image of slow waves, which resizing hardly blurs."""
  rows, columns = np.mgrid[:height, :width]
  phases = rows / height, columns / width, (rows + columns) / (height + width)
  pixels = np.stack([np.cos(2.5 * np.pi * x) for x in phases], axis=-1)
  pixels = (127.5 + 110 * pixels).astype(np.uint8)
  return tf.io.encode_jpeg(
    pixels, quality=90, chroma_downsampling=False
  ).numpy()


def _preprocessing() -> Any:
  return importlib.import_module('paxml.tasks.vision.resnet_preprocessing')


def _center_crop(shape: Sequence[int], size: int, **fields: Any) -> Any:
  pixels = _preprocessing().preprocess_image(
    _jpeg(*shape), image_size=size, **fields
  )
  return {
    'dtype': pixels.dtype.name,
    'pixels': np.asarray(pixels).astype(np.float32),
  }


def _crop_sizes(**fields: Any) -> dict[str, np.ndarray]:
  """Returns quantiles of areas and aspect ratios of random crops."""
  tf.random.set_seed(0)
  crop = _preprocessing().distorted_bounding_box_crop
  if 'rng' in inspect.signature(crop).parameters:
    fields['rng'] = np.random.default_rng(0)
  image, box = _jpeg(*_CROPPED), np.float32([[[0, 0, 1, 1]]])
  shapes = [np.shape(crop(image, box, **fields)) for _ in range(_NUM_CROPS)]
  heights, widths, _ = np.transpose(shapes)
  areas = heights * widths / np.prod(_CROPPED)
  return {
    'areas': np.quantile(areas, _QUANTILES),
    'aspect_ratios': np.quantile(widths / heights, _QUANTILES),
  }


def _images() -> Iterator[cases.Case]:
  sizes = [((64, 80), 96), ((50, 40), 32), ((224, 300), 224), ((90, 70), 20)]
  for (shape, size), use_bfloat16 in itertools.product(sizes, (False, True)):
    shrinks = size < 0.8 * min(shape)
    yield cases.FunctionCase(
      name=f'preprocess_image, {shape} to {size}, bfloat16={use_bfloat16}',
      function=functools.partial(
        _center_crop, shape, size, use_bfloat16=use_bfloat16
      ),
      tolerance=(_SHRINKING_DIFFERENCE if shrinks else _DECODING_DIFFERENCE)
      / 255,
    )
  for fields in (
    {'aspect_ratio_range': (0.75, 4 / 3), 'area_range': (0.08, 1.0)},
    {'aspect_ratio_range': (0.5, 2.0), 'area_range': (0.3, 0.6)},
    {'min_object_covered': 0.5},
  ):
    yield cases.FunctionCase(
      name=f'distorted_bounding_box_crop, {fields}',
      function=functools.partial(_crop_sizes, **fields),
      # Four standard errors of a quantile of that many crops.
      tolerance=0.06,
    )


def family() -> Iterator[cases.Case]:
  yield from _documents()
  yield cases.FunctionCase(
    name='SyntheticLmData', function=functools.partial(_synthetic, 2, 5)
  )
  yield from _images()
