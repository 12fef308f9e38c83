"""The matrix products of a pre-training step, and nothing else: how fast a step could be."""

from collections.abc import Callable, Sequence


def products_step(
    dimensions: dict[str, int],
    length: int,
    slots: int,
    vocabulary_size: int,
    *,
    num_heads_of_objectives: int,
    dtype: str = "float32",
) -> Callable[[], None]:
    """The products with weights, of attention and with the vocabulary, forward and backward.

    The small ones of the objectives' heads are left out.

    Args:
        dimensions: `layers`, `heads`, `width`, `inner` and `batch` of the model.
        length: positions of a row.
        slots: prediction slots of a row.
        vocabulary_size: entries of the vocabulary.
        num_heads_of_objectives: how often the slots are multiplied with the vocabulary.
        dtype: of all matrices.
    """
    import tensorflow as tf

    width, inner, batch = dimensions["width"], dimensions["inner"], dimensions["batch"]
    rows, pairs = batch * length, batch * dimensions["heads"]

    def matrix(*shape: int) -> tf.Variable:  # no constant, which a graph would fold
        return tf.Variable(tf.cast(tf.random.normal(shape), dtype), trainable=False)

    shapes = ((width, 3 * width), (width, width), (width, inner), (inner, width))
    dense = [(matrix(rows, a), matrix(a, b), matrix(rows, b)) for a, b in shapes]
    parts = [matrix(pairs, length, width // dimensions["heads"]) for _ in range(4)]
    weights = matrix(pairs, length, length)
    entries = (
        matrix(batch * slots, width),
        matrix(vocabulary_size, width),
        matrix(batch * slots, vocabulary_size),
    )

    @tf.function
    def layer() -> tf.Tensor:
        query, key, value, upstream = parts
        results = [
            tf.matmul(query, key, transpose_b=True),
            tf.matmul(weights, value),
            tf.matmul(upstream, value, transpose_b=True),
            tf.matmul(weights, upstream, transpose_a=True),
            tf.matmul(weights, key),
            tf.matmul(weights, query, transpose_a=True),
        ]
        for x, kernel, gradient in dense:
            results += [tf.matmul(x, kernel), *_backward(x, kernel, gradient)]
        return _corners(results)

    @tf.function
    def head() -> tf.Tensor:
        x, table, gradient = entries
        forward = tf.matmul(x, table, transpose_b=True)
        backward = [tf.matmul(gradient, table), tf.matmul(gradient, x, transpose_a=True)]
        return _corners([forward, *backward])

    def step() -> None:
        for _ in range(dimensions["layers"]):
            layer()
        for _ in range(num_heads_of_objectives):
            head().numpy()

    return step


def _backward(x: object, kernel: object, gradient: object) -> tuple:
    import tensorflow as tf

    of_x = tf.matmul(gradient, kernel, transpose_b=True)
    return of_x, tf.matmul(x, gradient, transpose_a=True)


def _corners(results: Sequence) -> object:
    """One number of each result, so that none is left out."""
    import tensorflow as tf

    return tf.add_n([tf.reduce_sum(result[..., :1, :1]) for result in results])
