# SPDX-License-Identifier: Apache-2.0
"""Imports every module of Sax's Pax server; prints the number of modules.

sax_imports.py FOLDER, which contains the package `saxml`.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

import sax_server_test_runner

if __name__ == '__main__':
  sax_server_test_runner.replace_compiled_modules()
  folder = pathlib.Path(sys.argv[1])
  paths = sorted(folder.glob('saxml/server/pax/**/*.py'))
  sources = [p for p in paths if not p.name.endswith('_test.py')]
  for path in sources:
    importlib.import_module(
      '.'.join(path.relative_to(folder).with_suffix('').parts)
    )
  print(json.dumps(len(sources)))
