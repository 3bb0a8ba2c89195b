"""AUC-loss: the share of wrongly ordered pairs as a training loss (Eq. 7 of the AP-loss paper)."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ProcessGroup

from rankdet.losses.collectives import eager_where_synchronized
from rankdet.losses.error_driven import error_driven_loss
from rankdet.losses.module import ClassLoss
from rankdet.losses.scope import Scope


@eager_where_synchronized
def auc_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    delta: float = 1.0,
    step: str = "piecewise",
    scope: Scope = "batch",
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """1 - AUC of ranking every object above every background box: a scalar from 0 to 1.

    The mean over all pairs of a positive and a negative of f(n_j - p_i), with the error-driven
    update; otherwise like `ap_loss`, which has the arguments. A tie counts 1/2, but 1 for the
    Heaviside step, which takes ties against the positives.

    >>> import torch
    >>> logits = torch.tensor([[0.0], [2.0], [-3.0]])
    >>> auc_loss(logits, torch.tensor([0, -1, -1])).item()
    0.5
    """
    return error_driven_loss(
        logits,
        labels,
        "auc",
        delta=delta,
        step=step,
        scope=scope,
        mask=mask,
        check_finite=check_finite,
        synchronize=synchronize,
        process_group=process_group,
    )


class AUCLoss(ClassLoss):
    """`auc_loss` with its settings.

    >>> import torch
    >>> AUCLoss(step="heaviside")(torch.tensor([[1.0], [0.0]]), torch.tensor([0, -1])).item()
    0.0
    """

    def __init__(
        self,
        delta: float = 1.0,
        step: str = "piecewise",
        scope: Scope = "batch",
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.delta = delta
        self.step = step
        self.scope = scope
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return auc_loss(
            logits,
            labels,
            delta=self.delta,
            step=self.step,
            scope=self.scope,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
