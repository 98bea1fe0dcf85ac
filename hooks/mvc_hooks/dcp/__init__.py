"""torch.distributed.checkpoint on a repository: what it saves is a commit, and any commit loads.

from mvc_hooks.dcp import MvcReader, MvcWriter

dcp.save(state_dict, storage_writer=MvcWriter("runs/gpt", step=1000))
dcp.load(state_dict, storage_reader=MvcReader("runs/gpt"))
"""

from mvc_hooks.dcp.reader import MvcReader
from mvc_hooks.dcp.writer import MvcWriter

__all__ = ["MvcReader", "MvcWriter"]
