# SPDX-License-Identifier: Apache-2.0
"""Versions of the layout of checkpoints.

1.2 is Tensorstore's OCDBT format; 1.1 has a directory per array. Earlier ones
are read too: `pax.checkpoints.formats.layouts`.
"""

from __future__ import annotations

_OCDBT_VERSION = 1.2
_VERSION = 1.1


def get_version(tensorstore_use_ocdbt: bool | None = None) -> float:
  """Returns the version of checkpoints with or without OCDBT.

  Raises:
    ValueError: `tensorstore_use_ocdbt` is None.
  """
  if tensorstore_use_ocdbt is None:
    raise ValueError(
      'the value of tensorstore_use_ocdbt must be set, got None; pass True for'
      f' version {_OCDBT_VERSION}, False for {_VERSION}'
    )
  return _OCDBT_VERSION if tensorstore_use_ocdbt else _VERSION


def get_version_key() -> str:
  """Returns the key of the version in the metadata of a checkpoint."""
  return 'version'
