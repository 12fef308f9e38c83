"""Operations of graphs: a TPU's step may have none of the host's, its data none of Python's."""

import tensorflow as tf

PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
OF_HOST = {
    *PYTHON,
    "Print",
    "PrintV2",
    "StringFormat",
    "Where",
    "Unique",
    "UniqueV2",
    "OutfeedEnqueue",
}


def operations(graph):
    """The operations of a `GraphDef` and of its functions."""
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    return {node.op for node in nodes}


def operations_of_data(dataset):
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor).numpy()
    return operations(tf.compat.v1.GraphDef.FromString(serialized))


def unknown_shapes(spec):
    return [one for one in tf.nest.flatten(spec) if not one.shape.is_fully_defined()]


def of_host(step, spec):
    """What a step of data has that no TPU computes: operations, strings, shapes it cannot know."""
    graph = tf.function(step).get_concrete_function(spec).graph
    found = operations(graph.as_graph_def()) & OF_HOST
    # XLA knows the axes of these when it compiles.
    known = [one for one in graph.get_operations() if one.type != "BroadcastGradientArgs"]
    tensors = [tensor for one in known for tensor in one.outputs]
    handles = (tf.resource, tf.variant)
    return found | {
        f"{tensor.op.type} {tensor.name} {tensor.dtype.name} {tensor.shape}"
        for tensor in tensors
        if tensor.dtype == tf.string
        or not (tensor.dtype in handles or tensor.shape.is_fully_defined())
    }
