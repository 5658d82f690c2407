"""From what the user gave to the addresses of nodes.

urls         URLs and their options
endpoints    all servers of one client: URLs, the environment, embedded servers, redis-py clients
sentinel     the master that Sentinel names
cluster      the slot map of a cluster
asking       the options of the redis-py clients that ask
connections  open connections to servers that may move
"""
