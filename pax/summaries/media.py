# SPDX-License-Identifier: Apache-2.0
"""Non-scalar summaries: images, videos, audio, texts, histograms."""

from __future__ import annotations

import dataclasses
import io
import struct
import wave
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from praxis import base_layer

SummaryType = base_layer.SummaryType

# Most items of a tag that are written.
MAX_PER_TAG = 64
# Default sample rate in hertz.
AUDIO_SAMPLE_RATE = 44_000
# Frames per second of videos.
VIDEO_FRAME_RATE = 10

_INT16_MAX = 2**15 - 1
_PNG_MAGIC = b'\x89PNG\r\n\x1a\n'
# PNG color types by number of channels: gray, gray + alpha, RGB, RGBA.
_PNG_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}
# Number of dimensions of one item.
_RANKS = {SummaryType.IMAGE: 3, SummaryType.AUDIO: 2, SummaryType.VIDEO: 4}


@dataclasses.dataclass(frozen=True)
class Media:
  """A value of one tag, which a device may still be computing."""

  # IMAGE: [..., height, width, channels]. VIDEO: [..., frames] of such images.
  # AUDIO: [..., samples, channels].
  # TEXT: a string, or an array of them. HISTOGRAM: numbers of any shape.
  # A list has one item of these per element, of any shapes.
  kind: SummaryType
  value: Any
  sample_rate: int = AUDIO_SAMPLE_RATE
  # Number of buckets of a histogram; None is the default of the writer.
  bins: int | None = None

  def on_host(self) -> Media:
    """Returns the media with its value as a numpy array."""
    if isinstance(self.value, str | list):
      return self
    return dataclasses.replace(self, value=np.asarray(self.value))

  def items(self) -> Iterator[tuple[str, Any]]:
    """Yields (suffix of the tag, value) of at most MAX_PER_TAG items.

    Images are uint8 [height, width, channels], videos [frames, height, width,
    channels], audio float [samples, channels].

    Raises:
      ValueError: The value has too few dimensions.
    """
    if self.kind is SummaryType.HISTOGRAM:
      yield '', np.asarray(self.value, np.float64).ravel()
    elif isinstance(self.value, str):
      yield '', self.value
    else:
      for i, row in enumerate(self.rows()[:MAX_PER_TAG]):
        yield f'/{i}', self._encodable(row)

  def rows(self) -> list[Any]:
    """Returns the items as they were given.

    Raises:
      ValueError: The value has too few dimensions.
    """
    if isinstance(self.value, list):
      return self.value
    return list(np.asarray(self.value).reshape(-1, *_row_shape(self)))

  def _encodable(self, row: Any) -> Any:
    match self.kind:
      case SummaryType.TEXT:
        return _string(row)
      case SummaryType.AUDIO:
        return row
      case _:
        return _uint8(row)


@dataclasses.dataclass(frozen=True)
class PluginTensor(Media):
  """A tensor for a plugin of TensorBoard; other services show its `kind`."""

  # The protocol buffer `SummaryMetadata`, which names the plugin.
  metadata: bytes = b''


def of_tensors(tensors: Mapping[str, Any]) -> dict[str, Media]:
  """Returns the media among summary tensors; the key determines the type."""
  tagged = {}
  for key, value in tensors.items():
    kind = base_layer.get_summary_base_type(
      base_layer.get_summary_type_from_key(key)
    )
    if kind is not SummaryType.SCALAR:
      tagged[key] = Media(kind, value)
  return tagged


def concatenate(first: Media, second: Media) -> Media:
  """Returns the items of two batches as one value."""
  if isinstance(first.value, str):
    return first
  if first.kind is SummaryType.HISTOGRAM:
    numbers = [np.ravel(m.value) for m in (first, second)]
    return dataclasses.replace(first, value=np.concatenate(numbers))
  rows = [*first.rows(), *second.rows()][:MAX_PER_TAG]
  has_one_shape = len({np.shape(row) for row in rows}) == 1
  return dataclasses.replace(
    first, value=np.stack(rows) if has_one_shape else rows
  )


def wav(samples: np.ndarray, sample_rate: int) -> bytes:
  """Returns a WAV file of samples [T, channels] in [-1, 1]."""
  samples = np.clip(np.asarray(samples, np.float64), -1.0, 1.0)
  file = io.BytesIO()
  with wave.open(file, 'wb') as f:
    f.setnchannels(samples.shape[1])
    f.setsampwidth(2)
    f.setframerate(sample_rate)
    f.writeframes((samples * _INT16_MAX).astype('<i2').tobytes())
  return file.getvalue()


def png(image: np.ndarray) -> bytes:
  """Returns a PNG file of uint8 [height, width, channels]."""
  return _png_file([_png_head(image), (b'IDAT', _png_lines(image))])


def animated_png(frames: np.ndarray) -> bytes:
  """Returns an animated PNG of uint8 [frames, height, width, channels].

  Viewers without support show the first frame:
  https://www.w3.org/TR/png-3/#apng-frame-based-animation
  """
  height, width = frames.shape[1:3]
  chunks = [_png_head(frames[0]), (b'acTL', struct.pack('>2I', len(frames), 0))]
  count = 0
  for index, frame in enumerate(frames):
    control = (count, width, height, 0, 0, 1, VIDEO_FRAME_RATE, 0, 0)
    chunks.append((b'fcTL', struct.pack('>5I2H2B', *control)))
    count += 1
    if index == 0:
      chunks.append((b'IDAT', _png_lines(frame)))
    else:
      number = struct.pack('>I', count)
      chunks.append((b'fdAT', number + _png_lines(frame)))
      count += 1
  return _png_file(chunks)


def _png_head(image: np.ndarray) -> tuple[bytes, bytes]:
  height, width, channels = image.shape
  if channels not in _PNG_COLORS:
    raise ValueError(
      f'an image must have 1 to 4 channels, got shape {image.shape}; put the'
      ' channels last'
    )
  color = _PNG_COLORS[channels]
  return b'IHDR', struct.pack('>2I5B', width, height, 8, color, 0, 0, 0)


def _png_lines(image: np.ndarray) -> bytes:
  """Returns the compressed scanlines, each with filter type 0 (none)."""
  height, width, channels = image.shape
  lines = np.zeros((height, 1 + width * channels), np.uint8)
  lines[:, 1:] = image.reshape(height, -1)
  return zlib.compress(lines.data)


def _png_file(chunks: list[tuple[bytes, bytes]]) -> bytes:
  chunks = [*chunks, (b'IEND', b'')]
  return _PNG_MAGIC + b''.join(_png_chunk(*chunk) for chunk in chunks)


def _png_chunk(name: bytes, content: bytes) -> bytes:
  checksum = zlib.crc32(name + content)
  return (
    struct.pack('>I', len(content)) + name + content
    + struct.pack('>I', checksum)
  )  # fmt: skip


def _row_shape(media: Media) -> tuple[int, ...]:
  shape, rank = np.shape(media.value), _RANKS.get(media.kind, 0)
  if len(shape) < rank:
    raise ValueError(
      f'a summary of type {media.kind.name} must have at least {rank}'
      f' dimensions, got shape {shape}'
    )
  return shape[len(shape) - rank :]


def _uint8(image: np.ndarray) -> np.ndarray:
  """Returns an image in [0, 1] as uint8."""
  if image.dtype == np.uint8:
    return image
  return np.round(np.clip(image.astype(np.float64), 0, 1) * 255).astype('u1')


def _string(value: Any) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)
