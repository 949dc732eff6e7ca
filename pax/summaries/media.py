# SPDX-License-Identifier: Apache-2.0
"""Summaries that are no scalars: pictures, films, audio, texts, histograms."""

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

# So many of a tag are written; more is nothing that people look at.
MAX_PER_TAG = 64
# Hertz, where a layer only gives samples.
AUDIO_SAMPLE_RATE = 44_000
# Frames a second of videos.
VIDEO_FRAME_RATE = 10

_INT16_MAX = 2**15 - 1
_PNG_MAGIC = b'\x89PNG\r\n\x1a\n'
# PNG's number for grey, grey and alpha, red green blue, those and alpha.
_PNG_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}
# How many dimensions one of them has.
_RANKS = {SummaryType.IMAGE: 3, SummaryType.AUDIO: 2, SummaryType.VIDEO: 4}


@dataclasses.dataclass(frozen=True)
class Media:
  """A value to be looked at; maybe still on its way from a device."""

  # IMAGE: [..., height, width, channels]. VIDEO: [..., frames] of such images.
  # AUDIO: [..., samples, channels].
  # TEXT: a string, or an array of them. HISTOGRAM: numbers of any shape.
  kind: SummaryType
  value: Any
  sample_rate: int = AUDIO_SAMPLE_RATE

  def on_host(self) -> Media:
    """The same with its value fetched."""
    if isinstance(self.value, str):
      return self
    return dataclasses.replace(self, value=np.asarray(self.value))

  def items(self) -> Iterator[tuple[str, Any]]:
    """(suffix of the tag, value) of each that is written, 64 at most.

    Images are uint8 [height, width, channels], videos frames of them, audio
    float [samples, channels].

    Raises:
      ValueError: the value has too few dimensions.
    """
    if self.kind is SummaryType.HISTOGRAM:
      yield '', np.asarray(self.value, np.float64).ravel()
    elif isinstance(self.value, str):
      yield '', self.value
    else:
      for i, row in enumerate(self._rows()[:MAX_PER_TAG]):
        yield f'/{i}', row

  def _rows(self) -> list[Any]:
    value = np.asarray(self.value)
    if self.kind is SummaryType.TEXT:
      return [_string(x) for x in value.ravel()]
    rows = value.reshape(-1, *_row_shape(self))
    is_audio = self.kind is SummaryType.AUDIO
    return list(rows) if is_audio else [_uint8(x) for x in rows]


def of_tensors(tensors: Mapping[str, Any]) -> dict[str, Media]:
  """The media among summaries by tag; their keys say their types."""
  found = {}
  for key, value in tensors.items():
    kind = base_layer.get_summary_base_type(
      base_layer.get_summary_type_from_key(key)
    )
    if kind is not SummaryType.SCALAR:
      found[key] = Media(kind, value)
  return found


def concatenate(first: Media, second: Media) -> Media:
  """Media of one tag from two batches as one."""
  if isinstance(first.value, str):
    return first
  rows = [
    np.asarray(m.value).reshape(-1, *_row_shape(m)) for m in (first, second)
  ]
  value = np.concatenate(rows)
  if first.kind is not SummaryType.HISTOGRAM:
    value = value[:MAX_PER_TAG]
  return dataclasses.replace(first, value=value)


def wav(samples: np.ndarray, sample_rate: int) -> bytes:
  """A WAV file of samples [T, channels] between -1 and 1."""
  samples = np.clip(np.asarray(samples, np.float64), -1.0, 1.0)
  file = io.BytesIO()
  with wave.open(file, 'wb') as f:
    f.setnchannels(samples.shape[1])
    f.setsampwidth(2)
    f.setframerate(sample_rate)
    f.writeframes((samples * _INT16_MAX).astype('<i2').tobytes())
  return file.getvalue()


def png(image: np.ndarray) -> bytes:
  """A PNG file of uint8 [height, width, channels]."""
  return _png_file([_png_head(image), (b'IDAT', _png_lines(image))])


def animated_png(frames: np.ndarray) -> bytes:
  """A PNG file that shows uint8 [frames, height, width, channels] in a loop.

  Who knows only still pictures shows the first frame:
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
  """The pixels; each line begins with the filter it was written by: none."""
  height, width, channels = image.shape
  lines = np.zeros((height, 1 + width * channels), np.uint8)
  lines[:, 1:] = image.reshape(height, -1)
  return zlib.compress(lines)


def _png_file(chunks: list[tuple[bytes, bytes]]) -> bytes:
  chunks = [*chunks, (b'IEND', b'')]
  return _PNG_MAGIC + b''.join(_png_chunk(*chunk) for chunk in chunks)


def _png_chunk(name: bytes, content: bytes) -> bytes:
  checksum = zlib.crc32(name + content)
  return (
    struct.pack('>I', len(content)) + name + content
    + struct.pack('>I', checksum)
  )  # fmt: skip


def _row_shape(one: Media) -> tuple[int, ...]:
  shape, rank = np.shape(one.value), _RANKS.get(one.kind, 0)
  if len(shape) < rank:
    raise ValueError(
      f'a summary of type {one.kind.name} must have at least {rank}'
      f' dimensions, got shape {shape}'
    )
  return shape[len(shape) - rank :]


def _uint8(image: np.ndarray) -> np.ndarray:
  """Numbers from 0 to 1 as those from 0 to 255."""
  if image.dtype == np.uint8:
    return image
  return np.round(np.clip(image.astype(np.float64), 0, 1) * 255).astype('u1')


def _string(value: Any) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)
