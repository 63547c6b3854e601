"""The micro-batch that runs now, for modules that put gradients of their own into a backward.

A balance loss of a mixture of experts is often such a gradient: a function of autograd passes its
input on, and in its backward gives the loss a constant gradient. A step's gradient is that of the
weighted sum of the micro-batches' losses, so that constant is to be `gradient_factor`:

    class AddLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, balance_loss):
            ctx.factor = current_micro_batch().gradient_factor
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient, torch.ones(()) * ctx.factor
"""

from .execution.base.current_micro_batch import CurrentMicroBatch, current_micro_batch

__all__ = ["CurrentMicroBatch", "current_micro_batch"]
