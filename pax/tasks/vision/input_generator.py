# SPDX-License-Identifier: Apache-2.0
"""Labeled images from ImageNet's TFRecord files, or noise.

A batch has `image` [B, H, W, 3], 0 to 255; `label_probs` [B, classes], one-hot;
`weight` and `eval_sample_weights` [B], 0 for padding rows; all float32.
"""

from __future__ import annotations

import functools
import os
from concurrent import futures

import numpy as np
from jaxtyping import Float, Int64

from pax.files import tf_records
from pax.inputs.records import file_fingerprints, text_files, tfrecord_files
from pax.inputs.rows import indexed
from pax.tasks.vision import resnet_preprocessing
from praxis import base_input, pax_fiddle, py_utils
from praxis.base_input import data_fingerprints

NestedMap = py_utils.NestedMap

# Number of images in ImageNet's training and validation sets.
TRAIN_EXAMPLES = 1281167
EVAL_EXAMPLES = 50000
# Folder of inputs without `data_dir`; users assign another.
_PLACEHOLDER = '/PATH/TO/IMAGENET_DATA/'
IMAGENET_DATA_DIR = _PLACEHOLDER

_IMAGE, _LABEL = 'image/encoded', 'image/class/label'


class BaseImageNetInput(indexed.IndexedInput):
  """Labeled JPEG images in TFRecord files.

  Every host opens all files, and reads its rows of each batch. Threads decode
  and augment the images. The augmentation is a function of the position of an
  example in the training order, so a resumed run reads the same images.
  """

  batch_size: int | None = 128
  # Folder of the TFRecord files; None is IMAGENET_DATA_DIR.
  data_dir: str | None = None
  # Glob of the names of the files, or of their paths; 'tfrecord:' may precede.
  file_pattern: str = '*'
  num_classes: int = 1000
  # Height, width and channels of the output; height and width are equal.
  data_shape: tuple[int, int, int] = (224, 224, 3)
  # Added to the labels of the files, which start at 1.
  label_id_offset: int = -1
  # Number of threads that decode images.
  num_batcher_threads: int = 64

  def __post_init__(self):
    super().__post_init__()
    height, width, channels = self.data_shape
    if height != width or channels != 3:
      raise ValueError(
        f'data_shape of {self.name!r} must be (S, S, 3), got {self.data_shape}'
      )
    pattern = self.file_pattern.removeprefix('tfrecord:')
    folder = self.data_dir or IMAGENET_DATA_DIR
    if folder == _PLACEHOLDER and not os.path.isabs(pattern):
      raise ValueError(
        f'data_dir of {self.name!r} must be the folder of the TFRecord files of'
        f' ImageNet ({self.file_pattern}), got {self.data_dir!r}; pass --set'
        ' DATA_DIR=/path/to/folder, or --set DATA_DIR=synthetic to measure'
        ' speed on noise'
      )
    self._paths = text_files.expand([os.path.join(folder, pattern)])

  @property
  def num_examples(self) -> int:
    return len(self._records)

  def data_fingerprint(self) -> data_fingerprints.Fingerprint:
    return self._fingerprint

  @functools.cached_property
  def _fingerprint(self) -> data_fingerprints.Fingerprint:
    return {
      'files': file_fingerprints.describe(self._paths),
      'seed': self.seed,
      'label_id_offset': self.label_id_offset,
    }

  def read(
    self,
    indices: Int64[np.ndarray, ' N'],
    positions: Int64[np.ndarray, ' N'],
  ) -> NestedMap:
    examples = list(self._pool.map(self._read_example, indices, positions))
    batch = NestedMap(
      image=np.zeros((len(examples), *self.data_shape), np.float32),
      label_probs=np.zeros((len(examples), self.num_classes), np.float32),
      weight=np.ones(len(examples), np.float32),
    )
    for i, (image, label) in enumerate(examples):
      batch.image[i] = image
      batch.label_probs[i, label] = 1.0
    return batch

  @classmethod
  def Params(cls) -> pax_fiddle.Config[BaseImageNetInput]:
    """Returns the config of this input, as `config` does."""
    return cls.config()

  def ImageBytesToBatch(self, image_bytes: bytes) -> NestedMap:
    """Returns a batch with one image and no label."""
    rng = np.random.default_rng(self.seed)
    return NestedMap(image=self._preprocess(image_bytes, rng)[None])

  @functools.cached_property
  def _records(self) -> tfrecord_files.RecordFiles:
    records = tfrecord_files.RecordFiles(self._paths)
    if not len(records):
      raise ValueError(
        f'data_dir of {self.name!r} must have TFRecord files with examples, got'
        f' {len(self._paths)} empty files such as {self._paths[0]}'
      )
    return records

  @functools.cached_property
  def _pool(self) -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(self.num_batcher_threads, 'decode')

  def _read_example(
    self, index: int, position: int
  ) -> tuple[Float[np.ndarray, 'S S 3'], int]:
    """Returns an image and its label."""
    rng = np.random.default_rng((self.seed, int(position)))
    try:
      features = tf_records.parse_example(self._records.read(int(index)))
      (encoded,), (label,) = features[_IMAGE], features[_LABEL]
      image = self._preprocess(encoded, rng)
    except (KeyError, ValueError) as e:
      raise ValueError(
        f'{self._records.where(int(index))} must have a JPEG image {_IMAGE}'
        f' and an integer {_LABEL}: {e}'
      ) from e
    label = int(label) + self.label_id_offset
    if not 0 <= label < self.num_classes:
      raise ValueError(
        f'the label of {self._records.where(int(index))}, with label_id_offset'
        f' {self.label_id_offset}, must be within 0 and'
        f' {self.num_classes - 1}, got {label}'
      )
    return image, label

  def _preprocess(
    self, image_bytes: bytes, rng: np.random.Generator
  ) -> Float[np.ndarray, 'S S 3']:
    return resnet_preprocessing.preprocess_image(
      image_bytes, self.is_training, image_size=self.data_shape[0], rng=rng
    )


class ImageNetTrain(BaseImageNetInput):
  """ImageNet's training set: random crops, randomly flipped."""

  file_pattern: str = 'train-*-of-*'
  is_training: bool = True


class ImageNetValidation(BaseImageNetInput):
  """ImageNet's validation set: center crops, one epoch."""

  file_pattern: str = 'validation-*-of-*'


class SyntheticImages(base_input.BaseInput):
  """A constant batch of noise with random labels.

  It measures the speed of training without the cost of an input pipeline.
  Evaluation reads it once.
  """

  num_classes: int = 1000
  # Height, width and channels of an image.
  data_shape: tuple[int, int, int] = (224, 224, 3)

  def __post_init__(self):
    super().__post_init__()
    self._batches = 0

  def get_next(self) -> NestedMap:
    """Returns the batch.

    Raises:
      StopIteration: Evaluation has read the batch.
    """
    if self._batches and not self.is_training:
      raise StopIteration
    self._batches += 1
    return NestedMap(self._batch)

  def reset(self) -> None:
    self.set_state({'batches': 0})

  @functools.cached_property
  def _batch(self) -> NestedMap:
    rng = np.random.default_rng((self.infeed_host_index, self.is_training))
    batch_size = self.get_batch_size(self)
    shape = (batch_size, *self.data_shape)
    labels = rng.integers(self.num_classes, size=batch_size)
    ones = np.ones(batch_size, np.float32)
    return NestedMap(
      image=255 * rng.random(shape, np.float32),
      label_probs=np.eye(self.num_classes, dtype=np.float32)[labels],
      weight=ones,
      eval_sample_weights=ones,
    )

  def _get_state_internal(self) -> base_input.State:
    return {'batches': self._batches}

  def _set_state_internal(self, state: base_input.State) -> None:
    self._batches = int(state['batches'])
