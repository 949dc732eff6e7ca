# SPDX-License-Identifier: Apache-2.0
"""Runs the tools by name, for `pax TOOL ...`."""

# bazel: deps=//pax/tools:codegen_lib,//pax/tools:convert_lib
# bazel: deps=//pax/tools:completion_lib,//pax/tools:diff_configs_lib
# bazel: deps=//pax/tools:docs_lib
# bazel: deps=//pax/tools:dump_hparams_lib,//pax/tools:dump_input_specs_lib
# bazel: deps=//pax/tools:graph_lib,//pax/tools:list_experiments_lib
# bazel: deps=//pax/tools:model_analysis_lib,//pax/tools:plot_lib
# bazel: deps=//pax/tools:launch_lib,//pax/tools:prepare_lib
# bazel: deps=//pax/tools:validate_config_lib
from __future__ import annotations

import importlib
from collections.abc import Sequence

from pax.tools import catalog, tool

_WELCOME = """\
Pax trains models on JAX. This trains a small language model on this machine,
draws its loss, and continues if it is run again:

  pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/tiny

Other constants of the experiment, or other steps:

  pax --exp=tasks.lm.params.quickstart.TinyLm --job_log_dir=/tmp/pax/wide \\
      --set MODEL_DIMS=256 --set task.train.num_train_steps=100

Train, evaluate and search
  pax --exp=NAME --job_log_dir=DIR              trains; again, it continues
  pax --exp=NAME --job_log_dir=DIR --mode=eval  evaluates its checkpoints
  pax --exp=NAME --job_log_dir=DIR --mode=aot   compiles for another machine
  pax tune --exp=NAME --job_log_dir=DIR         searches constants

{tools}

`pax --help` lists the flags of a run, `pax TOOL --help` those of a tool.
`pax docs` serves the documentation; its source begins at docs/index.md.
eval "$(pax completion bash)" completes commands, flags and experiments."""


def run(argv: Sequence[str]) -> int:
  """Runs `pax TOOL ...`; returns the exit code."""
  module = importlib.import_module(f'pax.tools.{catalog.tool_name(argv)}')
  return tool.run(module.main, argv[1:])


def help_text() -> str:
  """Returns one line for each tool, by group."""
  width = max(map(len, catalog.TOOLS))
  return '\n\n'.join(
    '\n'.join(
      [
        group,
        *(f'  pax {name:{width}}  {text}' for name, text in tools.items()),
      ]
    )
    for group, tools in catalog.GROUPS.items()
  )


def welcome_text() -> str:
  """Returns what to type first: the answer to `pax` alone."""
  return _WELCOME.format(tools=help_text())
