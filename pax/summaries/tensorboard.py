# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files, without TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pax.files import side_files
from pax.summaries import media
from praxis import base_layer

SummaryType = base_layer.SummaryType

_BINS = 30
# Names of dtypes in the protocol buffer `TensorProto`.
_TENSOR_TYPES = {
  'bool': 'DT_BOOL',
  'float32': 'DT_FLOAT',
  'float64': 'DT_DOUBLE',
  'int32': 'DT_INT32',
  'int64': 'DT_INT64',
  'uint8': 'DT_UINT8',
}
# Longest time until other processes can read an event.
_FLUSH_SECS = 30.0


class TensorBoardWriter:
  """Writes TensorBoard events, one directory per split."""

  def __init__(self, root: str, name: str = ''):
    """Opens no file.

    Args:
      root: A directory, which exists.
      name: Its subdirectory of the splits, which is created.
    """
    self._root, self._name = root, name
    self._by_split: dict[str, Any] = {}
    self._flushed_at = float('-inf')

  def write(
    self, step: int, values: Mapping[str, Any], split: str = 'train'
  ) -> None:
    from tensorboardX.proto import event_pb2

    # One event per step: many small ones are slow to write.
    summary = summary_message(values)
    if summary.value:
      event = event_pb2.Event(wall_time=time.time(), step=step, summary=summary)
      self._events(split).write_event(event)
      if time.monotonic() - self._flushed_at > _FLUSH_SECS:
        self.flush()

  def text(self, step: int, tag: str, text: str, split: str = 'train') -> None:
    self.write(step, {tag: media.Media(SummaryType.TEXT, text)}, split)

  def flush(self) -> None:
    for events in self._by_split.values():
      events.flush()
    self._flushed_at = time.monotonic()

  def close(self) -> None:
    for events in self._by_split.values():
      events.close()

  def _events(self, split: str) -> Any:
    if split not in self._by_split:
      from tensorboardX import event_file_writer  # Slow to import.

      folder = side_files.make_directories(self._root, self._name, split)
      # Not tensorboardX.FileWriter: after an error of its thread it hangs.
      self._by_split[split] = event_file_writer.EventsWriter(
        str(folder / 'events'),
        # Event file names contain the second, which several jobs may share.
        f'.{os.getpid()}',
      )
    return self._by_split[split]


def summary_message(values: Mapping[str, Any]) -> Any:
  """Returns the protocol buffer `Summary` of numbers and media by tag."""
  from tensorboardX.proto import summary_pb2

  messages = []
  for tag, value in values.items():
    if isinstance(value, media.PluginTensor):
      messages.append(_plugin_tensor(summary_pb2, tag, value))
    elif isinstance(value, media.Media):
      messages += _media(summary_pb2, tag, value)
    else:
      messages.append(
        summary_pb2.Summary.Value(tag=tag, simple_value=float(value))
      )
  return summary_pb2.Summary(value=messages)


def _media(pb2: Any, tag: str, value: media.Media) -> list[Any]:
  """Returns the summary messages of one tag; `pb2` is the proto module."""
  builders: dict[SummaryType, Callable[[Any, str, Any, media.Media], Any]] = {
    SummaryType.IMAGE: _image,
    SummaryType.VIDEO: _video,
    SummaryType.AUDIO: _audio,
    SummaryType.TEXT: _text,
    SummaryType.HISTOGRAM: _histogram,
  }
  build = builders[value.kind]
  return [
    build(pb2, f'{tag}{suffix}', item, value) for suffix, item in value.items()
  ]


def _image(pb2: Any, tag: str, image: np.ndarray, value: media.Media) -> Any:
  return _image_message(pb2, tag, image.shape, media.png(image))


def _video(pb2: Any, tag: str, frames: np.ndarray, value: media.Media) -> Any:
  # TensorBoard shows it as an image, which browsers animate.
  return _image_message(pb2, tag, frames.shape[1:], media.animated_png(frames))


def _image_message(
  pb2: Any, tag: str, shape: tuple[int, int, int], encoded: bytes
) -> Any:
  height, width, channels = shape
  return pb2.Summary.Value(
    tag=tag,
    image=pb2.Summary.Image(
      height=height,
      width=width,
      colorspace=channels,
      encoded_image_string=encoded,
    ),
  )


def _audio(pb2: Any, tag: str, samples: np.ndarray, value: media.Media) -> Any:
  length, channels = samples.shape
  return pb2.Summary.Value(
    tag=tag,
    audio=pb2.Summary.Audio(
      sample_rate=value.sample_rate,
      num_channels=channels,
      length_frames=length,
      encoded_audio_string=media.wav(samples, value.sample_rate),
      content_type='audio/wav',
    ),
  )


def _text(pb2: Any, tag: str, text: str, value: media.Media) -> Any:
  from tensorboardX import summary

  (message,) = summary.text(tag, text).value
  message.tag = tag
  return message


def _histogram(
  pb2: Any, tag: str, values: np.ndarray, value: media.Media
) -> Any:
  values = values[np.isfinite(values)]
  counts, edges = np.histogram(values, bins=value.bins or _BINS)
  return pb2.Summary.Value(
    tag=tag,
    histo=pb2.HistogramProto(
      min=values.min(initial=np.inf),
      max=values.max(initial=-np.inf),
      num=values.size,
      sum=values.sum(),
      sum_squares=values.dot(values),
      # Upper edge of each bucket.
      bucket_limit=edges[1:].tolist(),
      bucket=counts.tolist(),
    ),
  )


def _plugin_tensor(pb2: Any, tag: str, value: media.PluginTensor) -> Any:
  """Returns the summary message of a tensor that a plugin shows."""
  from tensorboardX.proto import tensor_pb2, tensor_shape_pb2, types_pb2

  array = np.asarray(value.value)
  name = _TENSOR_TYPES.get(array.dtype.name)
  if name is None:
    raise ValueError(
      f'the tensor of summary {tag!r} must have one of the dtypes'
      f' {sorted(_TENSOR_TYPES)}, got {array.dtype}'
    )
  dim = tensor_shape_pb2.TensorShapeProto.Dim
  shape = tensor_shape_pb2.TensorShapeProto(
    dim=[dim(size=size) for size in array.shape]
  )
  return pb2.Summary.Value(
    tag=tag,
    metadata=pb2.SummaryMetadata.FromString(value.metadata),
    tensor=tensor_pb2.TensorProto(
      dtype=types_pb2.DataType.Value(name),
      tensor_shape=shape,
      tensor_content=array.tobytes(),
    ),
  )
