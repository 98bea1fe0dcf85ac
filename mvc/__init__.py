"""Git for model parameters: checkpoints in, history, the same bytes out.

    import mvc

    repo = mvc.Repo.init("models")
    repo.add("model.safetensors")
    repo.commit("base model")
    repo.tensor("HEAD", "model.safetensors", "lm_head.weight")

Names are loaded on first use, so ``import mvc`` costs next to nothing. Those for training data are in
``mvc.sampling`` and ``mvc.shards``, those for training runs in ``mvc.training``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.errors import ConflictError as ConflictError
    from mvc.errors import CorruptionError as CorruptionError
    from mvc.errors import FormatError as FormatError
    from mvc.errors import GateError as GateError
    from mvc.errors import MvcError as MvcError
    from mvc.errors import NotFoundError as NotFoundError
    from mvc.errors import ReleasedError as ReleasedError
    from mvc.errors import RepositoryNotFoundError as RepositoryNotFoundError
    from mvc.errors import StorageError as StorageError
    from mvc.errors import UnsupportedError as UnsupportedError
    from mvc.errors import UsageError as UsageError
    from mvc.history.values import Identity as Identity
    from mvc.progress import reporting as reporting
    from mvc.repo import Repo as Repo
    from mvc.repo.outside import clone as clone
    from mvc.repo.outside import compare as compare
    from mvc.repo.outside import follow as follow
    from mvc.repo.outside import merge_recipe as merge_recipe
    from mvc.repo.outside import open_model as open_model
    from mvc.repo.outside import verify_models as verify_models
    from mvc.workspace.models import Model as Model
    from mvc.workspace.tensors import ModelTensor as ModelTensor
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc.errors": """
                ConflictError CorruptionError FormatError GateError MvcError
                NotFoundError ReleasedError RepositoryNotFoundError StorageError UnsupportedError UsageError
            """,
            "mvc.history.values": "Identity",
            "mvc.progress": "reporting",
            "mvc.repo": "Repo",
            "mvc.repo.outside": "clone compare follow merge_recipe open_model verify_models",
            "mvc.workspace.models": "Model",
            "mvc.workspace.tensors": "ModelTensor",
        },
    )

__version__ = "0.1.0"
