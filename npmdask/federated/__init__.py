"""Data that stay where they are: nodes that answer with products of their own, and a coordinator that has no data.

Balcan, Du, Wang and Yu 2016, Algorithm 2. Each node holds A_i and is a process of its own, with its own ledger, key and
noise; the coordinator iterates on the sum. Between them go X_{l-1} and A_i X_{l-1} + G_i, and nothing else.

=============  =====================================================================================
protocol       blocks as ``.npy``, public facts as JSON, tokens and signatures
client         the coordinator's side of the connections: patience, counters
coordinator    the nodes as one operator and one source, their releases, and the problem made of them
node, server   a node: what it answers, what it refuses; and its HTTP server
=============  =====================================================================================
"""
