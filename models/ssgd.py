"""What a framework lets run at the same time in synchronous SGD.

Source: S. Shi, Q. Wang, X. Chu and B. Li, A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep
Learning, arXiv:1805.03812, section IV-C. What waiting for input comes to stands in :mod:`planner.models.input`; the
paper's own equations and task graph, which cases ask for, in ``cases/forms/dag_model.py``.
"""

from enum import StrEnum


class Strategy(StrEnum):
    """What a framework lets run at the same time (section IV-C)."""

    NAIVE = "naive"  # one thing after the other
    CNTK = "cntk"  # reads ahead
    MXNET = "mxnet"  # and TensorFlow: reads ahead, and sends gradients during the backward pass
    CAFFE_MPI = "caffe_mpi"  # the same, and copies ahead into a second buffer on the device

    @property
    def reads_ahead(self) -> bool:
        """Whether the next batch is read during an iteration."""
        return self is not Strategy.NAIVE

    @property
    def copies_ahead(self) -> bool:
        """Whether the next batch is copied to the device during an iteration, too."""
        return self is Strategy.CAFFE_MPI

    @property
    def overlaps_gradients(self) -> bool:
        """Whether a gradient is sent as soon as it is ready (wait-free back-propagation)."""
        return self in (Strategy.MXNET, Strategy.CAFFE_MPI)
