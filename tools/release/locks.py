# SPDX-License-Identifier: Apache-2.0
"""Entries of the locks of third_party/pip."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Collection, Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = pathlib.PurePath('third_party/pip')
_HASH = re.compile(r'--hash=sha256:([0-9a-f]{64})')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """A distribution at one version."""

  # Canonical name.
  name: str
  # Without hashes, such as `jax==0.10.2 ; python_full_version < '3.12'`.
  pin: str
  # SHA-256 of its files.
  hashes: frozenset[str]
  # Its lines in the lock.
  text: str


def read(root: pathlib.Path, *names: str) -> list[Entry]:
  """Returns the entries of locks, such as `requirements_lock.txt`.

  Args:
    root: the root of the repository.
    *names: of the files; entries of all.
  """
  texts = [(root / FOLDER / name).read_text(encoding='utf-8') for name in names]
  return [
    _entry(text) for text in re.split(r'(?m)^(?=\S)', ''.join(texts)) if text
  ]


def _entry(text: str) -> Entry:
  pin = text.partition('\\\n')[0].strip()
  return Entry(
    name=canonicalize_name(Requirement(pin).name),
    pin=pin,
    hashes=frozenset(_HASH.findall(text)),
    text=text,
  )


def of(entries: Iterable[Entry], names: Collection[str]) -> list[Entry]:
  """Returns the entries of the distributions `names`, sorted."""
  found = [entry for entry in entries if entry.name in names]
  return sorted(found, key=lambda entry: (entry.name, entry.pin))


def text(entries: Iterable[Entry]) -> str:
  """Returns a requirements file with hashes."""
  return ''.join(entry.text for entry in entries)


def constraints(entries: Iterable[Entry]) -> str:
  """Returns a constraints file, which has no hashes."""
  return ''.join(f'{entry.pin}\n' for entry in entries)
