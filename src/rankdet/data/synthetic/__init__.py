"""The embedded set: drawn when asked for, nothing to download.

`SyntheticDataset` is imported when it is first used: the scenes alone need no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankdet.data.synthetic.dataset import SyntheticDataset

__all__ = ["SyntheticDataset"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rankdet.data.synthetic' has no attribute {name!r}")
    from rankdet.data.synthetic import dataset

    return getattr(dataset, name)
