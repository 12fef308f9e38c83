"""What the worker processes of a run have to agree on."""

import tensorflow as tf

from spanbert_tf.errors import MismatchError


class Workers:
    """The processes of a run: one, or those of a `MultiWorkerMirroredStrategy`.

    Args:
        strategy: distribution strategy of the run.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.are_several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.number = _number(strategy.cluster_resolver) if self.are_several else 0
        self.is_chief = self.number == 0

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any of the processes; all of them must ask."""
        return self._sum(int(flag)) > 0 if self.are_several else flag

    def check_same_step(self, step: int, directory: str) -> None:
        """Checks that all processes begin with the same step.

        Raises:
            MismatchError: they have read different checkpoints.
        """
        if not self.are_several:
            return
        total = self._sum(step)
        if total != step * self._strategy.num_replicas_in_sync:
            raise MismatchError(
                f"{directory}: this worker found step {step}, others another one; all workers need "
                "the same --output on a file system that they share"
            )

    def _sum(self, value: int) -> int:
        """The sum over all replicas."""
        return int(self._sum_in_graph(tf.constant(value, tf.int64)))

    @tf.function
    def _sum_in_graph(self, value: tf.Tensor) -> tf.Tensor:
        def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # A copy has a device, which the all-reduce needs to know.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

        sums = self._strategy.run(sum_over_replicas, args=(value,))
        return self._strategy.experimental_local_results(sums)[0]


def _number(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> int:
    """The number of this process; a job `chief`, where there is one, comes before the workers."""
    comes_after = resolver.task_type == "worker" and "chief" in resolver.cluster_spec().jobs
    return (resolver.task_id or 0) + comes_after
