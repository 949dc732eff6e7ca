# SPDX-License-Identifier: Apache-2.0
"""Token and position embeddings, softmax layers and their losses."""

from praxis.alias_names import module_getattr
from praxis.layers.embedding_softmax.embedding import Embedding as Embedding
from praxis.layers.embedding_softmax.embedding import (
  TokenCounter as TokenCounter,
)
from praxis.layers.embedding_softmax.full_softmax import (
  FullSoftmax as FullSoftmax,
)
from praxis.layers.embedding_softmax.gshard import (
  GShardSharedEmbeddingSoftmax as GShardSharedEmbeddingSoftmax,
)
from praxis.layers.embedding_softmax.positions import (
  PositionalEmbedding as PositionalEmbedding,
)
from praxis.layers.embedding_softmax.positions import (
  PositionalEmbedding2D as PositionalEmbedding2D,
)
from praxis.layers.embedding_softmax.positions import (
  TrainablePositionalEmbedding as TrainablePositionalEmbedding,
)
from praxis.layers.embedding_softmax.rotary import (
  RotaryPositionalEmbedding as RotaryPositionalEmbedding,
)
from praxis.layers.embedding_softmax.rotary_scaling import (
  LinearRotaryScaling as LinearRotaryScaling,
)
from praxis.layers.embedding_softmax.rotary_scaling import (
  Llama3RotaryScaling as Llama3RotaryScaling,
)
from praxis.layers.embedding_softmax.rotary_scaling import (
  ProportionalRotaryScaling as ProportionalRotaryScaling,
)
from praxis.layers.embedding_softmax.rotary_scaling import (
  YarnRotaryScaling as YarnRotaryScaling,
)
from praxis.layers.embedding_softmax.shared import (
  NClassMajorSharedEmbeddingSoftmax as NClassMajorSharedEmbeddingSoftmax,
)
from praxis.layers.embedding_softmax.shared import (
  SharedEmbeddingSoftmax as SharedEmbeddingSoftmax,
)
from praxis.layers.embedding_softmax.sigmoid import (
  SigmoidCrossEntropy as SigmoidCrossEntropy,
)

__getattr__ = module_getattr(__name__)
