"""Finds the addresses of the nodes, from the URLs or clients that the user has given.

urls         URLs and their options
endpoints    all servers of one client: URLs, the environment, embedded servers, redis-py clients
sentinel     the master that Sentinel names
cluster      the slot map of a cluster
asking       options of the redis-py clients that ask Sentinel and Cluster
connections  the open connections to servers that may move
"""
