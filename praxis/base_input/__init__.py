# SPDX-License-Identifier: Apache-2.0
"""Input pipelines; this module re-exports."""

from praxis import lazy_loader as _lazy_loader
from praxis.alias_names import module_getattr as _module_getattr
from praxis.base_input.input_pipeline import (
  VALID_NAME,
  BaseInput,
  State,
  UnknownStateError,
  Vocabulary,
  advance_state,
  end_of_data_errors,
  pad_rows,
  state_from_json,
  state_to_json,
)
from praxis.base_input.input_specs import (
  BaseInputSpecsProvider,
  DatasetInputSpecsProvider,
)
from praxis.base_input.lingvo_adaptors import (
  LingvoEvalAdaptor,
  LingvoInputAdaptor,
  LingvoInputAdaptorNewBatchSize,
  LingvoLazyEvalAdaptor,
)
from praxis.base_input.multi_input import MultiInput

__getattr__ = _module_getattr(__name__)

# Imported at the first use: TensorFlow takes seconds.
tf = _lazy_loader.LazyLoader('tf', globals(), 'tensorflow.compat.v2')
tf_v1 = _lazy_loader.LazyLoader('tf_v1', globals(), 'tensorflow.compat.v1')

__all__ = [name for name in dir() if not name.startswith('_')]
