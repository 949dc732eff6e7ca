# SPDX-License-Identifier: Apache-2.0
"""Images and their classes: ImageNet's TFRecord files, or noise.

A batch has `image` [B, H, W, 3], 0 to 255; `label_probs` [B, classes], 1 at the
class; `weight` and `eval_sample_weights` [B], 0 for rows that only fill it up.
"""

from __future__ import annotations

import functools
import os
from concurrent import futures

import numpy as np
from jaxtyping import Float, Int64

from pax import tf_records
from pax.inputs import indexed, text_files, tfrecord_files
from pax.tasks.vision import resnet_preprocessing
from praxis import base_input, pax_fiddle, py_utils

NestedMap = py_utils.NestedMap

# Images in ImageNet's two parts.
TRAIN_EXAMPLES = 1281167
EVAL_EXAMPLES = 50000

_IMAGE, _LABEL = 'image/encoded', 'image/class/label'


class BaseImageNetInput(indexed.IndexedInput):
  """Decodes JPEG files that TFRecord files hold with their labels.

  Every host sees all files, and reads its own rows of each batch. Decoding and
  random changes are done by threads; the changes follow from the place of an
  example in the order alone, so that a resumed run sees the same images.
  """

  batch_size: int | None = 128
  # The folder of the files, and which of those in it.
  data_dir: str | None = None
  file_pattern: str = '*'
  # Classes of the data.
  num_classes: int = 1000
  # Height, width and channels of what comes out; height and width are alike.
  data_shape: tuple[int, int, int] = (224, 224, 3)
  # Added to the labels of the files, which count from 1.
  label_id_offset: int = -1
  # Threads that decode.
  num_batcher_threads: int = 64

  def __post_init__(self):
    super().__post_init__()
    height, width, channels = self.data_shape
    if height != width or channels != 3:
      raise ValueError(
        f'data_shape of {self.name!r} must be (S, S, 3), got {self.data_shape}'
      )
    if not self.data_dir:
      raise ValueError(
        f'data_dir of {self.name!r} is not set: where are the TFRecord files of'
        f' ImageNet ({self.file_pattern})? Pass --set DATA_DIR=/its/folder, or'
        ' --set DATA_DIR=synthetic for noise, which only measures speed'
      )
    self._paths = text_files.expand(
      [os.path.join(self.data_dir, self.file_pattern)]
    )

  @property
  def num_examples(self) -> int:
    return len(self._records)

  def read(
    self,
    indices: Int64[np.ndarray, 'N'],
    positions: Int64[np.ndarray, 'N'],
  ) -> NestedMap:
    found = list(self._pool.map(self._example, indices, positions))
    batch = NestedMap(
      image=np.zeros((len(found), *self.data_shape), np.float32),
      label_probs=np.zeros((len(found), self.num_classes), np.float32),
      weight=np.ones(len(found), np.float32),
    )
    for i, (image, label) in enumerate(found):
      batch.image[i] = image
      batch.label_probs[i, label] = 1.0
    return batch

  @classmethod
  def Params(cls) -> pax_fiddle.Config[BaseImageNetInput]:
    """The config of this input; upstream's name for `config`."""
    return cls.config()

  def ImageBytesToBatch(self, image_bytes: bytes) -> NestedMap:
    """A batch that is one image, without its class; upstream's name."""
    rng = np.random.default_rng(self.seed)
    return NestedMap(image=self._preprocess(image_bytes, rng)[None])

  @functools.cached_property
  def _records(self) -> tfrecord_files.RecordFiles:
    found = tfrecord_files.RecordFiles(self._paths)
    if not len(found):
      raise ValueError(f'{len(self._paths)} files in {self.data_dir} are empty')
    return found

  @functools.cached_property
  def _pool(self) -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(self.num_batcher_threads, 'decode')

  def _example(
    self, index: int, position: int
  ) -> tuple[Float[np.ndarray, 'S S 3'], int]:
    """An image and its class."""
    rng = np.random.default_rng((self.seed, int(position)))
    try:
      features = tf_records.parse_example(self._records.read(int(index)))
      (encoded,), (label,) = features[_IMAGE], features[_LABEL]
      image = self._preprocess(encoded, rng)
    except (KeyError, ValueError) as e:
      raise ValueError(
        f'{self._records.where(int(index))} must hold a JPEG file as {_IMAGE}'
        f' and a number as {_LABEL}: {e}'
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
  """ImageNet's images to train on: random parts, some mirrored."""

  file_pattern: str = 'train-*-of-*'
  is_training: bool = True


class ImageNetValidation(BaseImageNetInput):
  """ImageNet's images to evaluate on: their middles, each once."""

  file_pattern: str = 'validation-*-of-*'


class SyntheticImages(base_input.BaseInput):
  """The same batch for ever: noise, and classes drawn at random.

  It takes no time to make, so what a run does with it is the model's own speed.
  Evaluation has it once.
  """

  # Classes, and height, width and channels.
  num_classes: int = 1000
  data_shape: tuple[int, int, int] = (224, 224, 3)

  def __post_init__(self):
    super().__post_init__()
    self._batches = 0

  def get_next(self) -> NestedMap:
    if self._batches and not self.is_training:
      raise StopIteration
    self._batches += 1
    return NestedMap(self._batch)

  def reset(self) -> None:
    self.set_state({'batches': 0})

  @functools.cached_property
  def _batch(self) -> NestedMap:
    rng = np.random.default_rng((self.infeed_host_index, self.is_training))
    shape = (self.batch_size, *self.data_shape)
    labels = rng.integers(self.num_classes, size=self.batch_size)
    ones = np.ones(self.batch_size, np.float32)
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
